/* How GPUs reach each other: P2P status, common ancestor, and the other ends of NVLinks. */
#include "fake.h"

#include <string.h>

#define ENTER_BOTH(one, two) do { int rc_ = enter(one, __func__, false); if (!rc_) rc_ = enter(two, __func__, false); if (rc_) return rc_; } while (0)

static u64 larger(device_t one, device_t two, const char *key) {
    u64 first = NUMBER(one, key), second = NUMBER(two, key);
    return first > second ? first : second;
}

EXPORT int nvmlDeviceGetP2PStatus(device_t one, device_t two, unsigned index, unsigned *status) {
    static const char *const KEYS[] = {"p2p_read_status", "p2p_write_status", "p2p_nvlink_status"};
    ENTER_BOTH(one, two);
    if (one == two) return INVALID;
    if (index > 2) return NOT_SUPPORTED;
    *status = (unsigned)larger(one, two, KEYS[index]);
    if (index == 2 && !*status && (!NUMBER(one, "nvlink_links") || !NUMBER(two, "nvlink_links"))) *status = 5;
    return OK;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(device_t one, device_t two, unsigned *level) {
    ENTER_BOTH(one, two);
    if (one == two) return INVALID;
    *level = (unsigned)larger(one, two, "topology_level");
    return OK;
}

/* Links beyond the last say invalid argument, as the driver does. */
static int check(device_t d, unsigned link) {
    u64 links = NUMBER(d, "nvlink_links");
    return links == 0 ? NOT_SUPPORTED : link >= links ? INVALID : OK;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(device_t d, unsigned link, unsigned *type) {
    ENTER(d);
    *type = (unsigned)NUMBER(d, "nvlink_remote");
    return check(d, link);
}

struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t d, struct pci_info *info);

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t d, unsigned link, struct pci_info *info) {
    ENTER(d);
    int rc = check(d, link);
    if (rc) return rc;
    if (NUMBER(d, "nvlink_remote") == 0)
        return nvmlDeviceGetPciInfo_v3(device_of((d->index + 1) % (int)scenario_number(-1, "gpus")), info);
    memset(info, 0, sizeof *info);
    info->bus = 5;
    strcpy(info->legacy, "0000:05:00.0");
    strcpy(info->id, "00000000:05:00.0");
    return OK;
}
