//go:build tools

// Package tools names the command that the lab builds from published modules.
package tools

import (
	_ "github.com/coredns/coredns"
)
