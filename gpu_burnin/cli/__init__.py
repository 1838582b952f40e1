"""The command line: options in, one call, exit code out."""
