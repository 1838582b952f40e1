//go:build tools

// Package tools names the command that the benchmark builds from published modules.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
