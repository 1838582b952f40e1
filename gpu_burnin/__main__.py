"""`python -m gpu_burnin` is the command line."""

from gpu_burnin.cli import main

main()
