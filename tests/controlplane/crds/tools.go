//go:build tools

// Package tools keeps the module whose files are used in go.mod and go.sum.
package tools

import _ "open-cluster-management.io/api/cluster/v1"
