"""The frame in which a running fleet is changed, host by host: look, plan, book, lock, step, verify, stop.

Each change (drivers, repairs, etcd and Kubernetes) looks at its hosts first and plans the run: which of them, in which
batches, and why the others are left. One run has the lock (`lock`). What was begun is on the controller's disk before
it is done (`documents`), so that a run which is lost leaves what the next one goes on from. A batch begins while few
enough hosts have failed (`batches`), and a host is done when it was verified. The tasks of Ansible are the steps:
`plugin_utils/roll.py` of the collection calls the change's decisions between them.
"""
