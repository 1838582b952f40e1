/* A fake libnvidia-ml.so.1 for machines without a GPU, served through unmodified nvidia-ml-py.
 *
 * It is driven by a scenario file (MUSTER_FAKE_NVML_SCENARIO, else /etc/fake-nvml/scenario) that nvmlInit
 * reads again each time. Structure layouts and version constants follow pynvml.py of nvidia-ml-py.
 * The extra symbol muster_fake_nvml tells gpu_burnin that the hardware is simulated. */
#define _POSIX_C_SOURCE 200809L
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct device devices[MAX_GPUS];
static int gpu_count;
static int open_count;

struct model {
    const char *key, *name;
    unsigned device_id, subsystem_id;
    u64 memory_bytes;
    const char *vbios;
    int major, minor, architecture;
};
/* PCI ids: NVIDIA open-gpu-kernel-modules README. Memory and VBIOS as nvidia-smi of such boards shows them. */
static const struct model MODELS[] = {
    {"h100-sxm", "NVIDIA H100 80GB HBM3", 0x2330, 0x16C1, 85520809984ULL, "96.00.89.00.01", 9, 0, 9},
    {"h200-sxm", "NVIDIA H200", 0x2335, 0x18BE, 150754820096ULL, "96.00.CF.00.01", 9, 0, 9},
};
static const unsigned PCI_BUS[MAX_GPUS] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf,
                                           0xe1, 0xe3, 0xe5, 0xe7, 0xe9, 0xeb, 0xed, 0xef};

EXPORT const char muster_fake_nvml[] = "simulated hardware: not an NVIDIA library";

static const struct model *find_model(const char *key) {
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
        if (!strcmp(key, MODELS[i].key)) return &MODELS[i];
    return NULL;
}
bool scenario_model_exists(const char *name) { return find_model(name) != NULL; }
static const struct model *model(int gpu) { return find_model(scenario_text(gpu, "model")); }

int enter(device_t device, const char *function, bool cached) {
    if (!open_count) return UNINITIALIZED;
    if (device < devices || device >= devices + gpu_count) return INVALID;
    hang(device->index, function);
    const char *lost = scenario_text(device->index, "lost");
    if (!strcmp(lost, "handle") || (!strcmp(lost, "calls") && !cached)) return LOST;
    return scenario_error(device->index, function);
}
bool is_open(void) { return open_count > 0; }
device_t device_of(int gpu) { return &devices[gpu]; }
void sleep_s(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (seconds > 0 && nanosleep(&left, &left)) continue;
}
void hang(int gpu, const char *function) {
    double seconds = scenario_hang_s(gpu, function);
    const char *note = seconds > 0 ? getenv("MUSTER_FAKE_NVML_HANGS") : NULL;
    FILE *file = note ? fopen(note, "w") : NULL;
    if (file) fclose(file);
    sleep_s(seconds);
}
/* A number of the scenario, or the model's where the scenario says nothing. */
static u64 number_or(device_t d, const char *key, u64 usual) {
    return *scenario_text(d->index, key) ? NUMBER(d, key) : usual;
}
static const char *text_or(device_t d, const char *key, const char *usual) {
    const char *text = scenario_text(d->index, key);
    return *text ? text : usual;
}
u64 memory_bytes(device_t device) { return number_or(device, "memory_bytes", model(device->index)->memory_bytes); }

static int put(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

/* ---- library and system ---- */
EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *path = getenv("MUSTER_FAKE_NVML_SCENARIO");
    int rc = scenario_load(path && *path ? path : "/etc/fake-nvml/scenario");
    if (!rc) rc = driver_open();
    if (rc < 0) _exit(2);
    if (rc || (rc = scenario_error_code(scenario_text(-1, "init_error")))) return rc;
    gpu_count = (int)scenario_number(-1, "gpus");
    for (int i = 0; i < gpu_count; i++) devices[i].index = i;
    open_count++;
    return OK;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) {
    if (!open_count) return UNINITIALIZED;
    open_count--;
    return OK;
}
EXPORT const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake NVML error %d", code);
    return text;
}
#define SYSTEM_TEXT(function, key) \
    EXPORT int function(char *out, unsigned size) { return open_count ? put(out, size, scenario_text(-1, key)) : UNINITIALIZED; }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver_version")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml_version")
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = (int)scenario_number(-1, "cuda_version");
    return open_count ? OK : UNINITIALIZED;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    (void)pid;
    return open_count ? put(out, size, "fake-process") : UNINITIALIZED;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!open_count) return UNINITIALIZED;
    *count = (unsigned)gpu_count;
    int rc = scenario_error_code(scenario_text(-1, "count_error"));
    return rc < 0 ? INVALID : rc;
}

/* ---- identity ---- */
/* 64 bits that depend on the scenario's identity, the GPU and the salt (FNV-1a): serials and UUIDs. */
static u64 hash_of(int gpu, unsigned salt) {
    char text[224];
    snprintf(text, sizeof text, "%s/%d/%u", scenario_text(gpu, "identity"), gpu, salt);
    u64 hash = 14695981039346656037ULL;
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdULL; /* spreads the last characters over all bits */
    return hash ^ hash >> 33;
}
static void uuid_of(int gpu, char out[48]) {
    const char *other = scenario_text(gpu, "uuid_of");
    if (*other) gpu = atoi(other);
    u64 a = hash_of(gpu, 1), b = hash_of(gpu, 2);
    snprintf(out, 48, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff,
             (unsigned)a & 0xffff, (unsigned)(b >> 48), b & 0xffffffffffffULL);
}
static unsigned bus_of(int gpu) {
    const char *text = scenario_text(gpu, "pci_bus");
    return *text ? (unsigned)strtoul(text, NULL, 16) : PCI_BUS[gpu];
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (!open_count) return UNINITIALIZED;
    if (index >= (unsigned)gpu_count) return INVALID;
    if (!strcmp(scenario_text((int)index, "lost"), "handle")) return LOST;
    *device = &devices[index];
    return scenario_error((int)index, __func__);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    char own[48];
    for (unsigned i = 0; i < (unsigned)gpu_count; i++) {
        uuid_of((int)i, own);
        if (!strcmp(own, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return open_count ? NOT_FOUND : UNINITIALIZED;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, device_t *device) {
    unsigned domain, bus;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2) return INVALID;
    for (unsigned i = 0; i < (unsigned)gpu_count; i++)
        if (!domain && bus_of((int)i) == bus) return nvmlDeviceGetHandleByIndex_v2(i, device);
    return open_count ? NOT_FOUND : UNINITIALIZED;
}
EXPORT int nvmlDeviceGetIndex(device_t d, unsigned *index) { ENTER_CACHED(d); *index = (unsigned)d->index; return OK; }
EXPORT int nvmlDeviceGetMinorNumber(device_t d, unsigned *minor) { ENTER_CACHED(d); *minor = (unsigned)d->index; return OK; }
EXPORT int nvmlDeviceGetModuleId(device_t d, unsigned *id) { ENTER_CACHED(d); *id = (unsigned)d->index + 1; return OK; }
EXPORT int nvmlDeviceGetUUID(device_t d, char *out, unsigned size) {
    ENTER_CACHED(d);
    char uuid[48];
    uuid_of(d->index, uuid);
    return put(out, size, uuid);
}
EXPORT int nvmlDeviceGetSerial(device_t d, char *out, unsigned size) {
    ENTER_CACHED(d);
    char serial[16];
    snprintf(serial, sizeof serial, "165%010llu", hash_of(d->index, 3) % 10000000000ULL);
    return put(out, size, serial);
}
EXPORT int nvmlDeviceGetName(device_t d, char *out, unsigned size) { ENTER_CACHED(d); return put(out, size, text_or(d, "name", model(d->index)->name)); }
EXPORT int nvmlDeviceGetVbiosVersion(device_t d, char *out, unsigned size) { ENTER(d); return put(out, size, text_or(d, "vbios_version", model(d->index)->vbios)); }
#define DEVICE_TEXT(function, key) \
    EXPORT int function(device_t d, char *out, unsigned size) { ENTER(d); return put(out, size, scenario_text(d->index, key)); }
DEVICE_TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
DEVICE_TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image_version")
EXPORT int nvmlDeviceGetGspFirmwareVersion(device_t d, char *out) { ENTER(d); strcpy(out, scenario_text(d->index, "gsp_firmware_version")); return OK; }
EXPORT int nvmlDeviceValidateInforom(device_t d) { ENTER(d); return FLAG(d, "inforom_valid") ? OK : CORRUPT_INFOROM; }

struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };
EXPORT int nvmlDeviceGetPciInfo_v3(device_t d, struct pci_info *info) {
    ENTER_CACHED(d);
    memset(info, 0, sizeof *info);
    info->bus = bus_of(d->index);
    info->device_id = (unsigned)number_or(d, "pci_device_id", model(d->index)->device_id) << 16 | 0x10DE;
    info->subsystem_id = (unsigned)number_or(d, "pci_subsystem_id", model(d->index)->subsystem_id) << 16 | 0x10DE;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus & 0xff);
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", info->bus & 0xff);
    return OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(device_t d, int *major, int *minor) {
    ENTER(d);
    *major = model(d->index)->major;
    *minor = model(d->index)->minor;
    sscanf(scenario_text(d->index, "compute_capability"), "%d.%d", major, minor);
    return OK;
}
EXPORT int nvmlDeviceGetArchitecture(device_t d, unsigned *out) { ENTER(d); *out = (unsigned)model(d->index)->architecture; return OK; }

/* ---- plain numbers ---- */
#define DEVICE_NUMBER(function, type, key) EXPORT int function(device_t d, type *out) { ENTER(d); *out = (type)NUMBER(d, key); return OK; }
#define DEVICE_FLAG(function, key) EXPORT int function(device_t d, unsigned *out) { ENTER(d); *out = FLAG(d, key); return OK; }
#define DEVICE_PAIR(function, first, second) \
    EXPORT int function(device_t d, unsigned *a, unsigned *b) { ENTER(d); *a = first; *b = second; return OK; }
DEVICE_FLAG(nvmlDeviceGetPersistenceMode, "persistence")
DEVICE_NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_usage_mw")
DEVICE_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit_mw")
DEVICE_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_default_mw")
DEVICE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_enforced_mw")
DEVICE_PAIR(nvmlDeviceGetPowerManagementLimitConstraints, (unsigned)NUMBER(d, "power_min_mw"), (unsigned)NUMBER(d, "power_max_mw"))
DEVICE_NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj")
DEVICE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_max_generation")
DEVICE_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie_max_generation")
DEVICE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_max_width")
DEVICE_NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replay")
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "clocks_event_reasons")
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "clocks_event_reasons")
DEVICE_PAIR(nvmlDeviceGetEccMode, FLAG(d, "ecc_current"), FLAG(d, "ecc_pending"))
DEVICE_PAIR(nvmlDeviceGetMigMode, FLAG(d, "mig_current"), FLAG(d, "mig_pending"))
struct utilization { unsigned gpu, memory; };
EXPORT int nvmlDeviceGetUtilizationRates(device_t d, struct utilization *u) {
    ENTER(d);
    u->gpu = (unsigned)NUMBER(d, "utilization_gpu_percent");
    u->memory = (unsigned)NUMBER(d, "utilization_memory_percent");
    return OK;
}
DEVICE_PAIR(nvmlDeviceGetPerformanceState, 0, 0)

static int clock_key(unsigned type, const char *graphics, const char *memory, const char **key) {
    *key = type == 2 ? memory : graphics;
    return type > 3 ? INVALID : OK;
}
#define DEVICE_CLOCK(function, graphics, memory) \
    EXPORT int function(device_t d, unsigned type, unsigned *out) { \
        const char *key; \
        ENTER(d); \
        if (clock_key(type, graphics, memory, &key)) return INVALID; \
        *out = (unsigned)NUMBER(d, key); \
        return OK; \
    }
DEVICE_CLOCK(nvmlDeviceGetClockInfo, "clock_graphics_mhz", "clock_memory_mhz")
DEVICE_CLOCK(nvmlDeviceGetMaxClockInfo, "max_clock_graphics_mhz", "max_clock_memory_mhz")

EXPORT int nvmlDeviceGetTemperature(device_t d, unsigned sensor, unsigned *out) {
    ENTER(d);
    *out = (unsigned)NUMBER(d, "temperature_c");
    return sensor ? INVALID : OK;
}
struct temperature { unsigned version, sensor; int value; };
EXPORT int nvmlDeviceGetTemperatureV(device_t d, struct temperature *t) {
    ENTER(d);
    if (t->version != 0x100000C) return BAD_VERSION;
    t->value = (int)NUMBER(d, "temperature_c");
    return t->sensor ? INVALID : OK;
}
EXPORT int nvmlDeviceGetTemperatureThreshold(device_t d, unsigned kind, unsigned *out) {
    static const char *const KEYS[] = {"temperature_shutdown_c", "temperature_slowdown_c",
                                       "temperature_memory_max_c", "temperature_gpu_max_c"};
    ENTER(d);
    if (kind > 3) return NOT_SUPPORTED;
    *out = (unsigned)NUMBER(d, KEYS[kind]);
    return OK;
}
struct margin { unsigned version; int value; };
EXPORT int nvmlDeviceGetMarginTemperature(device_t d, struct margin *m) {
    ENTER(d);
    if (m->version != 0x1000008) return BAD_VERSION;
    m->value = (int)NUMBER(d, "temperature_margin_c");
    return OK;
}

