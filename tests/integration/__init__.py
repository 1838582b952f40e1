"""The lab end to end: the main job on real hosts, then everything that must not be possible there."""
