"""Knowledge about hardware as data with sources: GPU models, XID policy, reason codes."""

from __future__ import annotations

from gpu_burnin.hardware.drivers import Architecture, DriverNeeds, DriverTable, Modules, load_drivers
from gpu_burnin.hardware.located import HardwareDataError
from gpu_burnin.hardware.reasons import ReasonInfo, load_reasons, make_reason, what_to_do
from gpu_burnin.hardware.skus import Confidence, Floor, Limit, NewField, Sku, SkuTable, load_skus
from gpu_burnin.hardware.xid import (
    NVLINK5_CODES,
    NvlinkRule,
    Preflight,
    Runtime,
    Severity,
    TextRule,
    XidPolicy,
    XidTable,
    load_xids,
)

__all__ = [
    "NVLINK5_CODES",
    "Architecture",
    "Confidence",
    "DriverNeeds",
    "DriverTable",
    "Floor",
    "HardwareDataError",
    "Limit",
    "Modules",
    "NewField",
    "NvlinkRule",
    "Preflight",
    "ReasonInfo",
    "Runtime",
    "Severity",
    "Sku",
    "SkuTable",
    "TextRule",
    "XidPolicy",
    "XidTable",
    "load_drivers",
    "load_reasons",
    "load_skus",
    "load_xids",
    "make_reason",
    "what_to_do",
]
