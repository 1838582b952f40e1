"""The fault campaign: every fault must be seen with the right code on the right GPU, no healthy run may fail."""

import os

# One thread for each process, as the workers have: two campaigns' worth of BLAS threads only wait for each other.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
