"""The NVIDIA stack of a host: what there is, what was asked for, and how to get there.

Runs on the hosts, with the standard library alone. A reader takes the root of the file system that it reads and the
function that runs commands, so that tests give it others; it changes nothing.
"""
