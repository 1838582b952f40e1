//go:build tools

// Package tools names the commands that are built from published modules.
package tools

import (
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/kueue/cmd/kueue"
)
