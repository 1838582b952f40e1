#!/bin/sh
# Entry point of a lab host, before systemd: what a real machine has and a container lacks.
set -eu
# A boot id of its own at each start; the kernel's is the outer machine's.
cat /proc/sys/kernel/random/uuid > /run/lab_boot_id
mount --bind /run/lab_boot_id /proc/sys/kernel/random/boot_id
[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
# The kernel log of this boot, begun anew with what the scenario logs at boot. Not /dev/kmsg, which is a regular
# file here: systemd writes to it without appending.
mkdir -p /run/lab
echo '6,0,1,-;Linux version of the lab' > /run/lab/kmsg
if [ -f /etc/fake-nvml/kmsg ]; then cat /etc/fake-nvml/kmsg >> /run/lab/kmsg; fi
# A stand-in machine begins anew: no driver is loaded but what its kernel loads by itself.
if [ -x /usr/sbin/lab-nvidia ]; then lab-nvidia boot; fi
# The device nodes that the driver's helper makes: one for each GPU of the scenario, and the driver's own.
if [ -f /etc/fake-nvml/scenario ] && [ ! -x /usr/sbin/lab-nvidia ]; then
  gpus=$(sed -n 's/^gpus *= *\([0-9]*\).*/\1/p' /etc/fake-nvml/scenario)
  for minor in $(seq 0 $((${gpus:-2} - 1))) 255; do
    name=nvidia$minor
    if [ "$minor" = 255 ]; then name=nvidiactl; fi
    mknod -m 666 "/dev/$name" c 195 "$minor"
  done
  mknod -m 666 /dev/nvidia-uvm c 510 0
fi
if [ "${LAB_CGROUP_V1:-0}" = 1 ]; then
  # Without this, the units of all hosts land in one shared outer hierarchy, and kubelet cannot make kubepods.
  umount /sys/fs/cgroup/systemd/release_agent 2>/dev/null || true
  umount /sys/fs/cgroup/systemd
  for controller in systemd cpu cpuacct cpuset memory devices freezer blkio pids; do
    mount -o remount,bind,rw "/sys/fs/cgroup/$controller"
  done
  umount /sys/fs/cgroup/unified 2>/dev/null || true
fi
mount --make-rshared /
exec /sbin/init
