"""A Hopper multiprocessor for kernels in Gluon, on the CPU and with the worst legal timing."""
