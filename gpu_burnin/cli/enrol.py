"""`gpu-burnin enrol` and `seal`: the first boot of a machine from the fleet's image, and the making of that image."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_burnin.cli.options import host_config
from gpu_burnin.errors import GpuBurninError

STATE_DIR = Path("/var/lib/muster-enrol")


_config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Configuration file.  [default: /etc/gpu-burnin/config.yaml]",
)
_root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="The machine's root folder.",
)


@click.command()
@_config_option
@click.option(
    "--state",
    "state_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=STATE_DIR,
    show_default=True,
    metavar="DIR",
    help="Where its keys are kept until it has enrolled.",
)
@_root_option
def enrol(config_path: Path | None, state_dir: Path, root: Path) -> None:
    """Say who this machine is, wait until it is let in, and become that node. For the first boot of the fleet's image.

    The token comes from user-data or the kernel's command line. Exit code 0 done, now or before; 1 when the machine is
    not let in; 2 when something is missing.
    """
    from gpu_burnin.api.enrolment import SIGNED_FOR, Claim
    from gpu_burnin.node.enrol import course, given, keys, settle
    from gpu_burnin.node.enrol.api import TokenApi
    from gpu_burnin.node.signing import own_public_key, sign
    from gpu_burnin.system import host

    if (state_dir / settle.DONE).exists():
        click.echo(f"enrolled before, as {(state_dir / settle.DONE).read_text().strip()}")
        return
    config = host_config(config_path, None)
    settle.read_manifest(root)
    handed = given.given(root)
    pair = keys.pair_of(state_dir, handed.node)
    claim = Claim(
        node=handed.node,
        token=handed.token,
        host_key=own_public_key(config.host_key),
        machine_id=host.machine_id(root),
        boot_id=host.boot_id(root),
        product_uuid=host.read_host(root).dmi.get("product_uuid", ""),
        request_sha256=pair.request_sha256,
    )
    found = course.enrol(
        TokenApi(config.publish, handed),
        handed,
        claim,
        lambda data: sign(data, config.host_key, SIGNED_FOR),
        pair.request,
        click.echo,
    )
    settle.settle(found, pair.key, config.publish, state_dir, root)
    given.forget(root)
    keys.forget(state_dir)
    click.echo(f"{found.node}: enrolled: {found.decision.address}, pods {found.decision.pod_range}")


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--address", required=True, metavar="ADDRESS", help="Its address in the inventory.")
@click.option("--pod-range", required=True, metavar="CIDR", help="Its pod_network_range in the inventory.")
@_config_option
@_root_option
def seal(node: str, address: str, pod_range: str, config_path: Path | None, root: Path) -> None:
    """Make the disk of this machine, which site.yml has built as NODE, the image that others boot from.

    It stops kubelet and the burn-in's services, removes SSH host keys, certificates, tokens, the machine id, runs and
    logs, and notes where the machine's own name and addresses stand. The machine cannot be used after it: switch it
    off, and copy its disk. Exit code 2 when this is not NODE, or when a secret is left.
    """
    from gpu_burnin.node.enrol import seal as sealing

    own = host_config(config_path, None).node_name
    if node != own:
        raise GpuBurninError(f"this machine is {own}, not {node}: nothing was changed")
    if root == Path("/"):
        sealing.stop()
    found = sealing.seal(root, node, address, pod_range)
    for name in found.removed:
        click.echo(f"removed {root / name}")
    click.echo(f"sealed: {len(found.files)} files have what is this machine's own; switch it off and copy its disk")
