/* The health half of the fake NVML: memory, ECC, remapping, processes, NVLink, fabric, field values. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory, ECC, remapping, repair ---- */
struct memory { u64 total, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo(device_t d, struct memory *m) {
    ENTER(d);
    m->total = memory_bytes(d);
    m->used = NUMBER(d, "memory_used_bytes");
    m->free = m->total - m->used;
    return OK;
}
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *m) {
    ENTER(d);
    if (m->version != 0x02000028) return BAD_VERSION;
    m->total = memory_bytes(d);
    m->reserved = 600ULL << 20;
    m->used = NUMBER(d, "memory_used_bytes");
    m->free = m->total - m->reserved - m->used;
    return OK;
}
static u64 ecc_count(device_t d, unsigned type, unsigned counter, bool sram) {
    char key[64];
    snprintf(key, sizeof key, "ecc_%s_%s%s", type ? "uncorrected" : "corrected",
             counter ? "aggregate" : "volatile", sram ? "_sram" : "");
    return NUMBER(d, key);
}
EXPORT int nvmlDeviceGetTotalEccErrors(device_t d, unsigned type, unsigned counter, u64 *out) {
    ENTER(d);
    *out = ecc_count(d, type, counter, false) + ecc_count(d, type, counter, true);
    return OK;
}
EXPORT int nvmlDeviceGetMemoryErrorCounter(device_t d, unsigned type, unsigned counter, unsigned location, u64 *out) {
    ENTER(d);
    if (location != 2 && location != 7) return NOT_SUPPORTED; /* data centre GPUs since Ampere: DRAM and SRAM */
    *out = ecc_count(d, type, counter, location == 7);
    return OK;
}
struct sram { unsigned version; u64 agg_parity, agg_secded, agg_cor, vol_parity, vol_secded, vol_cor, l2, sm, pcie, mcu, other; unsigned exceeded; };
EXPORT int nvmlDeviceGetSramEccErrorStatus(device_t d, struct sram *s) {
    ENTER(d);
    if (s->version != 0x1000068) return BAD_VERSION;
    unsigned version = s->version;
    memset(s, 0, sizeof *s);
    s->version = version;
    s->agg_secded = s->l2 = ecc_count(d, 1, 1, true);
    s->vol_secded = ecc_count(d, 1, 0, true);
    s->agg_cor = ecc_count(d, 0, 1, true);
    s->vol_cor = ecc_count(d, 0, 0, true);
    s->exceeded = FLAG(d, "sram_threshold_exceeded");
    return OK;
}
EXPORT int nvmlDeviceGetRemappedRows(device_t d, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failure) {
    ENTER(d);
    *cor = (unsigned)NUMBER(d, "remapped_corrected");
    *unc = (unsigned)NUMBER(d, "remapped_uncorrected");
    *pending = FLAG(d, "remap_pending");
    *failure = FLAG(d, "remap_failure");
    return OK;
}
EXPORT int nvmlDeviceGetRowRemapperHistogram(device_t d, unsigned out[5]) {
    ENTER(d);
    memset(out, 0, 5 * sizeof *out);
    out[0] = 640;
    return OK;
}
/* Page retirement ended with Volta; newer boards say not supported. */
EXPORT int nvmlDeviceGetRetiredPages(device_t d, unsigned cause, unsigned *count, u64 *addresses) {
    ENTER(d);
    if (!FLAG(d, "retired_pages_supported")) return NOT_SUPPORTED;
    unsigned found = (unsigned)NUMBER(d, cause ? "retired_pages_double_bit" : "retired_pages_single_bit");
    bool fits = *count >= found;
    for (unsigned i = 0; fits && addresses && i < found; i++) addresses[i] = 0x10000ULL * (i + 1);
    *count = found;
    return fits ? OK : TOO_SMALL;
}
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(device_t d, unsigned *out) {
    ENTER(d);
    *out = FLAG(d, "retired_pages_pending");
    return FLAG(d, "retired_pages_supported") ? OK : NOT_SUPPORTED;
}
struct repair { unsigned version, channel, tpc; };
EXPORT int nvmlDeviceGetRepairStatus(device_t d, struct repair *r) {
    ENTER(d);
    if (r->version != 0x100000C) return BAD_VERSION;
    r->channel = FLAG(d, "channel_repair_pending");
    r->tpc = FLAG(d, "tpc_repair_pending");
    return OK;
}
struct unrepairable { unsigned version, flag; };
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t d, struct unrepairable *u) {
    ENTER(d);
    if (u->version != 0x1000008) return BAD_VERSION;
    u->flag = FLAG(d, "unrepairable_memory");
    return OK;
}

/* ---- time below the wanted clocks ---- */
struct violation { u64 reference_us, violation_ns; };
EXPORT int nvmlDeviceGetViolationStatus(device_t d, unsigned policy, struct violation *v) {
    static const char *const KEYS[] = {"throttle_power_ns", "throttle_thermal_ns", "throttle_sync_boost_ns",
                                       "throttle_board_limit_ns", "throttle_low_utilization_ns", "throttle_reliability_ns"};
    ENTER(d);
    if (policy > 5) return NOT_SUPPORTED;
    v->reference_us = (u64)(scenario_elapsed_s() * 1e6);
    v->violation_ns = NUMBER(d, KEYS[policy]);
    return OK;
}

/* ---- processes ---- */
struct process { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; };
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *count, struct process *out) {
    ENTER(d);
    unsigned found = 0, room = *count, pid;
    u64 bytes;
    for (const char *next = scenario_text(d->index, "processes"); next && *next; next = strchr(next, ',')) {
        next += strspn(next, ", ");
        if (sscanf(next, "%u:%llu", &pid, &bytes) != 2) return INVALID;
        if (out && found < room) out[found] = (struct process){pid, bytes, 0xffffffff, 0xffffffff};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
static int no_processes(device_t d, const char *function, unsigned *count) {
    int rc = enter(d, function, false);
    *count = 0;
    return rc;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t d, unsigned *count, struct process *out) { (void)out; return no_processes(d, __func__, count); }
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t d, unsigned *count, struct process *out) { (void)out; return no_processes(d, __func__, count); }

/* ---- NVLink and fabric ---- */
static int check_link(device_t d, unsigned link) {
    unsigned links = (unsigned)NUMBER(d, "nvlink_links");
    return links == 0 ? NOT_SUPPORTED : link >= links ? INVALID : OK;
}
EXPORT int nvmlDeviceGetNvLinkState(device_t d, unsigned link, unsigned *active) {
    ENTER(d);
    int rc = check_link(d, link);
    if (rc) return rc;
    *active = 1;
    for (const char *next = scenario_text(d->index, "nvlink_down"); next && *next; next = strchr(next, ',')) {
        next += strspn(next, ", ");
        if (strtoul(next, NULL, 10) == link) *active = 0;
    }
    return OK;
}
EXPORT int nvmlDeviceGetNvLinkVersion(device_t d, unsigned link, unsigned *version) {
    ENTER(d);
    *version = (unsigned)NUMBER(d, "nvlink_version");
    return check_link(d, link);
}
static u64 on_first_link(device_t d, unsigned link, const char *key) { return link == 0 ? NUMBER(d, key) : 0; }
EXPORT int nvmlDeviceGetNvLinkErrorCounter(device_t d, unsigned link, unsigned counter, u64 *out) {
    static const char *const KEYS[] = {"nvlink_replay", "nvlink_recovery", "nvlink_crc", "nvlink_crc"};
    ENTER(d);
    int rc = check_link(d, link);
    if (rc || counter > 3) return rc ? rc : NOT_SUPPORTED;
    *out = on_first_link(d, link, KEYS[counter]);
    return OK;
}
/* As drivers do: version 3 of the structure since 580, version 2 and the function for both since 550. */
struct fabric { unsigned version; uint8_t cluster[16]; unsigned status, clique; uint8_t state; unsigned health_mask; uint8_t summary; };
static int driver_branch(void) { return atoi(scenario_text(-1, "driver_version")); }
EXPORT int nvmlDeviceGetGpuFabricInfoV(device_t d, struct fabric *f) {
    ENTER(d);
    int branch = driver_branch();
    bool summary = f->version == 0x3000028 && branch >= 580;
    if (branch < 550) return FUNCTION_NOT_FOUND;
    if (!summary && f->version != 0x02000024) return BAD_VERSION;
    memset(f->cluster, 0, sizeof f->cluster);
    f->status = (unsigned)NUMBER(d, "fabric_status");
    f->clique = 0;
    f->state = (uint8_t)NUMBER(d, "fabric_state");
    f->health_mask = (unsigned)NUMBER(d, "fabric_health_mask");
    if (summary) f->summary = (uint8_t)NUMBER(d, "fabric_health_summary");
    return OK;
}
struct fabric_v1 { uint8_t cluster[16]; unsigned status, clique; uint8_t state; };
EXPORT int nvmlDeviceGetGpuFabricInfo(device_t d, struct fabric_v1 *f) {
    ENTER(d);
    memset(f->cluster, 0, sizeof f->cluster);
    f->status = (unsigned)NUMBER(d, "fabric_status");
    f->clique = 0;
    f->state = (uint8_t)NUMBER(d, "fabric_state");
    return OK;
}

/* ---- field values ---- */
struct field { uint32_t id, scope; int64_t timestamp, latency; unsigned type; int rc; u64 value; };
static int field_value(device_t d, struct field *f) {
    static const struct { uint32_t id; const char *key; } NUMBERS[] = {
        {74, "throttle_power_ns"}, {75, "throttle_thermal_ns"}, {76, "throttle_sync_boost_ns"},
        {77, "throttle_board_limit_ns"}, {78, "throttle_low_utilization_ns"}, {79, "throttle_reliability_ns"},
        {82, "temperature_memory_c"}, {83, "energy_mj"}, {91, "nvlink_links"}, {94, "pcie_replay"}, {142, "remapped_corrected"}, {143, "remapped_uncorrected"},
        {164, "nvlink_speed_mbps"}, {173, "pcie_correctable_errors"}, {179, "pcie_nonfatal_errors"},
        {180, "pcie_fatal_errors"}, {185, "power_usage_mw"}, {186, "power_usage_mw"},
        {189, "power_default_mw"}, {190, "power_limit_mw"}, {191, "energy_mj"}, {230, "recovery_action"},
        {269, "throttle_sw_thermal_ns"}, {270, "throttle_hw_thermal_ns"}, {271, "throttle_power_brake_ns"},
    };
    static const char *const TLIMITS[] = {"tlimit_shutdown_c", "tlimit_slowdown_c", "tlimit_memory_max_c", "tlimit_gpu_max_c"};
    char name[24];
    snprintf(name, sizeof name, "field_%u", f->id);
    hang(d->index, name);
    int rc = scenario_error(d->index, name);
    if (rc) return rc;
    f->type = 3; /* unsigned long long */
    if (f->id == 144 || f->id == 145) { f->value = FLAG(d, f->id == 144 ? "remap_pending" : "remap_failure"); return OK; }
    if (f->id >= 193 && f->id <= 196) {
        f->type = 5; /* signed int */
        f->value = NUMBER(d, TLIMITS[f->id - 193]);
        return OK;
    }
    if (f->id == 208) {
        f->value = on_first_link(d, f->scope, "nvlink_receive_errors");
        return NUMBER(d, "nvlink_version") < 7 ? NOT_SUPPORTED : check_link(d, f->scope);
    }
    if (f->id == 214 || f->id == 215) {
        f->value = on_first_link(d, f->scope, f->id == 214 ? "nvlink_recovery_failed" : "nvlink_recovery");
        return check_link(d, f->scope);
    }
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (NUMBERS[i].id == f->id) { f->value = NUMBER(d, NUMBERS[i].key); return OK; }
    return NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetFieldValues(device_t d, int count, struct field *fields) {
    ENTER(d);
    for (int i = 0; i < count; i++) fields[i].rc = field_value(d, &fields[i]);
    return OK;
}
