"""Action side of muster.fleet.etcd_member: with `throttle: 1` the first host that fails is the last."""

from ansible_collections.muster.fleet.plugins.plugin_utils.one_after_the_other import ActionModule

__all__ = ["ActionModule"]
