"""What runs in a job's pod, sent as one zip file: the standard library alone, for Python 3.8 and newer."""
