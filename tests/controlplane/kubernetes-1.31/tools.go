//go:build tools

// Package tools keeps the commands built from this module in go.mod and go.sum.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
