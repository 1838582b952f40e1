//go:build tools

// Package tools names the program that the chart's test builds from a published module.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
