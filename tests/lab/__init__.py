"""The lab: a small fleet of real hosts (systemd, SSH) in podman containers on one machine."""
