//go:build tools

// Package tools keeps the command built from this module in go.mod and go.sum.
package tools

import _ "go.etcd.io/etcd/server/v3"
