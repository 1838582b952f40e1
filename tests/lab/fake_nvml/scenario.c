/* Parser of scenario files. A key nobody knows is refused: a misspelt fault would look like a healthy GPU. */
#define _POSIX_C_SOURCE 200809L
#include "scenario.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_PAIRS 1024

struct pair {
    int gpu; /* -1: every GPU, or the node */
    char key[80];
    char value[176];
    bool timed;                        /* holds only from from_s or after after_reads, else always */
    double from_s, over_s;             /* seconds of the scenario; length of a ramp from the value before */
    long after_reads;                  /* -1: by time */
    long reads[MAX_GPUS + 1];          /* by GPU, the node first */
    bool delivered;                    /* of events */
};

static struct pair pairs[MAX_PAIRS];
static double started_s;
static const char *clock_file; /* the scenario's time counts from that of this file; null: from nvmlInit */
static size_t pair_count;
static size_t profile_count; /* pairs below this index are the profile: they define the known keys */

/* What every healthy GPU says. Figures of an H100 SXM5 80GB where the model does not override them. */
static const char *const PROFILE =
    "identity = fake\n"
    "model = h100-sxm\n"
    "gpus = 2\n"
    "driver_version = 580.95.05\n"
    "nvml_version = 13.580.95.05\n"
    "cuda_version = 13000\n"
    "init_error = none\n"
    "count_error = none\n"
    "lost = no\n"                /* no | calls (the driver still knows the identity) | handle (not even that) */
    "uuid_of =\n"               /* the number of the GPU whose UUID this one gives as its own */
    "pci_bus =\n"                /* hexadecimal; empty: from the table in fake_nvml.c */
    "name =\n"                   /* this and the next five: empty is as the model says */
    "pci_device_id =\n"
    "pci_subsystem_id =\n"
    "memory_bytes =\n"
    "vbios_version =\n"
    "compute_capability =\n"     /* such as 8.0 */
    "board_part_number = 692-2G520-0200-000\n"
    "inforom_image_version = G520.0200.00.05\n"
    "inforom_valid = yes\n"
    "gsp_firmware_version = 580.95.05\n"
    "persistence = yes\n"
    "ecc_current = yes\n"
    "ecc_pending = yes\n"
    "ecc_corrected_volatile = 0\n"
    "ecc_uncorrected_volatile = 0\n"
    "ecc_corrected_aggregate = 0\n"
    "ecc_uncorrected_aggregate = 0\n"
    "ecc_corrected_volatile_sram = 0\n"
    "ecc_uncorrected_volatile_sram = 0\n"
    "ecc_corrected_aggregate_sram = 0\n"
    "ecc_uncorrected_aggregate_sram = 0\n"
    "sram_threshold_exceeded = no\n"
    "remapped_corrected = 0\n"
    "remapped_uncorrected = 0\n"
    "remap_pending = no\n"
    "remap_failure = no\n"
    "retired_pages_supported = no\n"
    "retired_pages_single_bit = 0\n"
    "retired_pages_double_bit = 0\n"
    "retired_pages_pending = no\n"
    "recovery_action = 0\n"
    "channel_repair_pending = no\n"
    "tpc_repair_pending = no\n"
    "unrepairable_memory = no\n"
    "clock_graphics_mhz = 345\n"
    "clock_memory_mhz = 2619\n"
    "max_clock_graphics_mhz = 1980\n"
    "max_clock_memory_mhz = 2619\n"
    "clocks_event_reasons = 0x1\n"
    "temperature_c = 31\n"
    "temperature_margin_c = 56\n"
    "temperature_memory_c = 40\n"
    "temperature_shutdown_c = 92\n"
    "temperature_slowdown_c = 89\n"
    "temperature_memory_max_c = 95\n"
    "temperature_gpu_max_c = 87\n"
    "tlimit_shutdown_c = -8\n"   /* offsets from the limit, fields 193 to 196 */
    "tlimit_slowdown_c = -2\n"
    "tlimit_memory_max_c = 0\n"
    "tlimit_gpu_max_c = 0\n"
    "utilization_gpu_percent = 0\n"
    "utilization_memory_percent = 0\n"
    "throttle_power_ns = 0\n"    /* time below the wanted clock by cause, nanoseconds */
    "throttle_thermal_ns = 0\n"
    "throttle_sync_boost_ns = 0\n"
    "throttle_board_limit_ns = 0\n"
    "throttle_low_utilization_ns = 0\n"
    "throttle_reliability_ns = 0\n"
    "throttle_sw_thermal_ns = 0\n"
    "throttle_hw_thermal_ns = 0\n"
    "throttle_power_brake_ns = 0\n"
    "power_usage_mw = 71000\n"
    "power_limit_mw = 700000\n"
    "power_enforced_mw = 700000\n"
    "power_default_mw = 700000\n"
    "power_min_mw = 200000\n"
    "power_max_mw = 700000\n"
    "energy_mj = 123456789\n"
    "mig_current = no\n"
    "mig_pending = no\n"
    "pcie_generation = 5\n"
    "pcie_max_generation = 5\n"
    "pcie_width = 16\n"
    "pcie_max_width = 16\n"
    "pcie_replay = 0\n"
    "pcie_fatal_errors = 0\n"
    "pcie_nonfatal_errors = 0\n"
    "pcie_correctable_errors = 0\n"
    "nvlink_links = 18\n"
    "nvlink_down =\n"            /* comma-separated link numbers */
    "nvlink_version = 6\n"       /* NVML_NVLINK_VERSION_4_0; 7 is 5.0 */
    "nvlink_speed_mbps = 26562\n"
    "nvlink_remote = 2\n"        /* nvmlIntNvLinkDeviceType_t: 2 switch, 0 the GPU with the next number */
    "topology_level = 50\n"      /* nvmlGpuTopologyLevel_t: 10 one PCIe switch, 30 host bridge, 40 node, 50 system */
    "p2p_read_status = 0\n"      /* nvmlGpuP2PStatus_t of every pair that the GPU is in; 0 ok */
    "p2p_write_status = 0\n"
    "p2p_nvlink_status = 0\n"    /* 5, not supported, where either has no NVLink */
    "nvlink_replay = 0\n"
    "nvlink_recovery = 0\n"
    "nvlink_recovery_failed = 0\n"
    "nvlink_crc = 0\n"
    "nvlink_receive_errors = 0\n"
    "fabric_state = 3\n"
    "fabric_status = 0\n"
    "fabric_health_summary = 0\n"
    "fabric_health_mask = 0\n"
    "events_supported = 0x1f\n"  /* mask of nvmlEventType; 0: none */
    "processes =\n"              /* pid:bytes, pid:bytes */
    "memory_used_bytes = 0\n";

static const struct { const char *name; int code; } ERRORS[] = {
    {"none", 0}, {"uninitialized", 1}, {"invalid_argument", 2}, {"not_supported", 3}, {"no_permission", 4},
    {"not_found", 6}, {"driver_not_loaded", 9}, {"timeout", 10}, {"irq_issue", 11},
    {"library_not_found", 12}, {"function_not_found", 13}, {"corrupted_inforom", 14}, {"gpu_is_lost", 15},
    {"reset_required", 16}, {"operating_system", 17}, {"version_mismatch", 18}, {"in_use", 19},
    {"memory", 20}, {"no_data", 21}, {"unknown", 999},
};

int scenario_error_code(const char *text) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (!strcmp(text, ERRORS[i].name)) return ERRORS[i].code;
    char *end;
    long code = strtol(text, &end, 10);
    return *text && !*end && code >= 0 && code <= 999 ? (int)code : -1;
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) *--end = '\0';
    return text;
}

static bool one_of(const char *text, const char *const *words) {
    while (*words && strcmp(text, *words)) words++;
    return *words;
}

static bool is_number(const char *text) {
    char *end;
    strtoull(text, &end, 0);
    return *text && !*end;
}

static bool is_seconds(const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    return *text && !*end && isfinite(seconds) && seconds >= 0;
}

/* "3s" or "2reads" behind the @ of a key; NULL when it is one of them. */
static const char *read_when(struct pair *pair, const char *when) {
    char *end;
    double number = strtod(when, &end);
    pair->timed = true;
    pair->after_reads = -1;
    if (end == when || !isfinite(number) || number < 0) return "has no number behind @";
    if (!strcmp(end, "s")) {
        pair->from_s = number;
        return NULL;
    }
    if (strcmp(end, "reads") || number != floor(number)) return "has neither s nor reads behind the number after @";
    pair->after_reads = (long)number;
    return NULL;
}

/* Takes " over 5s" off the end of a value. */
static const char *read_ramp(struct pair *pair, char *value) {
    char *over = strstr(value, " over ");
    if (!over || !strcmp(pair->key, "event")) return NULL;
    if (!pair->timed || pair->after_reads >= 0) return "has 'over' without a time (@...s) to start at";
    char *end;
    pair->over_s = strtod(over + 6, &end);
    if (end == over + 6 || strcmp(end, "s") || !isfinite(pair->over_s) || pair->over_s <= 0)
        return "must end with 'over SECONDSs'";
    *over = '\0';
    return is_number(value) ? NULL : "has 'over' behind something that is no number";
}

static const char *check_event(const struct pair *pair, const char *value) {
    unsigned long long type, data;
    if (!pair->timed || pair->after_reads >= 0) return "needs a time: event@SECONDSs";
    return scenario_event_type(value, &type, &data) ? NULL : "must name single_bit_ecc, double_bit_ecc or xid CODE";
}

/* What is wrong with a value, NULL when it is as the profile's value for this key suggests. */
static const char *check_value(const char *key, const char *value) {
    static const char *const FLAGS[] = {"yes", "no", "true", "false", "1", "0", NULL};
    static const char *const LOST[] = {"no", "calls", "handle", NULL};
    static const char *const OPTIONAL_NUMBERS[] = {"pci_device_id", "pci_subsystem_id", "memory_bytes", "uuid_of", NULL};
    size_t length = strlen(key);
    if (!strcmp(key, "model")) return scenario_model_exists(value) ? NULL : "has an unknown model";
    if (!strcmp(key, "gpus") && is_number(value) && strtoull(value, NULL, 0) > MAX_GPUS) return "has more than 16 GPUs";
    if (!strncmp(key, "hang.", 5)) return is_seconds(value) ? NULL : "must hold a number of seconds";
    if (one_of(key, OPTIONAL_NUMBERS)) return !*value || is_number(value) ? NULL : "must hold a number";
    if (!strcmp(key, "compute_capability")) {
        int major, minor, used = 0;
        bool fits = sscanf(value, "%1d.%1d%n", &major, &minor, &used) == 2 && !value[used];
        return !*value || fits ? NULL : "must look like 9.0";
    }
    if (!strncmp(key, "error.", 6) || (length > 6 && !strcmp(key + length - 6, "_error")))
        return scenario_error_code(value) < 0 ? "has an unknown error name" : NULL;
    if (!strcmp(key, "lost")) return one_of(value, LOST) ? NULL : "must say no, calls or handle";
    for (size_t i = 0; i < profile_count; i++) {
        if (strcmp(pairs[i].key, key)) continue;
        const char *usual = pairs[i].value;
        if (one_of(usual, FLAGS) && !isdigit((unsigned char)*usual))
            return one_of(value, FLAGS) ? NULL : "must say yes or no";
        if (!is_number(usual)) return NULL; /* free text */
        return is_number(value) ? NULL : "must hold a number";
    }
    return "has an unknown key";
}

/* One line; NULL, or what is wrong with it. `profile` lines define keys, all others must use them. */
static const char *add_line(char *line, bool profile) {
    char *comment = strchr(line, '#');
    if (comment) *comment = '\0';
    line = trim(line);
    if (!*line) return NULL;
    char *equals = strchr(line, '=');
    if (!equals) return "is not 'key = value'";
    *equals = '\0';
    char *key = trim(line), *value = trim(equals + 1);
    int gpu = -1, used = 0;
    if (sscanf(key, "gpu%d.%n", &gpu, &used) == 1 && used) key += used;
    else gpu = -1;
    if (gpu >= MAX_GPUS || gpu < -1) return "names a GPU above 15";
    if (strlen(key) >= sizeof pairs->key || strlen(value) >= sizeof pairs->value) return "is too long";
    if (pair_count == MAX_PAIRS) return "is one line too many";
    struct pair *pair = &pairs[pair_count];
    *pair = (struct pair){.gpu = gpu, .after_reads = -1};
    char *at = strchr(key, '@');
    if (at) *at = '\0';
    strcpy(pair->key, key);
    const char *wrong = at ? read_when(pair, at + 1) : NULL;
    if (!wrong) wrong = read_ramp(pair, value);
    if (!wrong && !profile) wrong = strcmp(key, "event") ? check_value(key, value) : check_event(pair, value);
    if (wrong) return wrong;
    strcpy(pair->value, value);
    pair_count++;
    return NULL;
}

int scenario_load(const char *path) {
    char line[512];
    pair_count = profile_count = 0;
    started_s = now_s();
    clock_file = getenv("MUSTER_FAKE_NVML_CLOCK");
    for (const char *next = PROFILE; *next;) {
        size_t length = strcspn(next, "\n");
        memcpy(line, next, length);
        line[length] = '\0';
        add_line(line, true);
        next += length + 1;
    }
    profile_count = pair_count;
    return scenario_add(path);
}

int scenario_add(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "fake-nvml: cannot read the scenario %s\n", path);
        return 9; /* driver not loaded */
    }
    int number = 0, result = 0;
    while (!result && fgets(line, sizeof line, file)) {
        number++;
        const char *wrong = add_line(line, false);
        if (!wrong) continue;
        fprintf(stderr, "fake-nvml: %s:%d: the line %s\n", path, number, wrong);
        result = -1;
    }
    fclose(file);
    return result;
}

void scenario_set(int gpu, const char *key, const char *value) {
    char line[512];
    if (gpu < 0) snprintf(line, sizeof line, "%s = %s", key, value);
    else snprintf(line, sizeof line, "gpu%d.%s = %s", gpu, key, value);
    add_line(line, false);
}

static double seconds_of(struct timespec time) { return (double)time.tv_sec + (double)time.tv_nsec * 1e-9; }

static double clock_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return seconds_of(now);
}

double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

double scenario_elapsed_s(void) {
    if (!clock_file) return now_s() - started_s;
    struct stat file;
    /* By the file's own time: who looks late sees what is then. */
    return stat(clock_file, &file) ? 0 : clock_s(CLOCK_REALTIME) - seconds_of(file.st_mtim);
}

static bool holds(struct pair *pair, int gpu) {
    if (!pair->timed) return true;
    if (pair->after_reads < 0) return scenario_elapsed_s() >= pair->from_s;
    return pair->reads[gpu + 1]++ >= pair->after_reads;
}

/* The line that gives the value, of the first `count` lines: the last that holds, one for this GPU alone first. */
static struct pair *lookup(int gpu, const char *key, size_t count) {
    struct pair *general = NULL, *own = NULL;
    for (size_t i = 0; i < count; i++) {
        bool fits = pairs[i].gpu < 0 || pairs[i].gpu == gpu;
        if (!fits || strcmp(pairs[i].key, key) || !holds(&pairs[i], gpu)) continue;
        if (pairs[i].gpu < 0) general = &pairs[i];
        else own = &pairs[i];
    }
    return own ? own : general;
}

const char *scenario_text(int gpu, const char *key) {
    const struct pair *pair = lookup(gpu, key, pair_count);
    return pair ? pair->value : "";
}

static unsigned long long number_of(int gpu, const char *key, size_t count) {
    const struct pair *pair = lookup(gpu, key, count);
    if (!pair) return 0;
    unsigned long long wanted = strtoull(pair->value, NULL, 0);
    double part = pair->over_s > 0 ? (scenario_elapsed_s() - pair->from_s) / pair->over_s : 1;
    if (part >= 1) return wanted;
    unsigned long long before = number_of(gpu, key, (size_t)(pair - pairs));
    return before + (unsigned long long)(long long)(((double)(long long)(wanted - before)) * part);
}

unsigned long long scenario_number(int gpu, const char *key) { return number_of(gpu, key, pair_count); }

bool scenario_flag(int gpu, const char *key) {
    const char *value = scenario_text(gpu, key);
    return !strcmp(value, "yes") || !strcmp(value, "true") || !strcmp(value, "1");
}

int scenario_error(int gpu, const char *name) {
    char key[sizeof pairs->key];
    snprintf(key, sizeof key, "error.%s", name);
    const struct pair *pair = lookup(gpu, key, pair_count);
    return pair ? scenario_error_code(pair->value) : 0;
}

double scenario_hang_s(int gpu, const char *name) {
    char key[sizeof pairs->key];
    snprintf(key, sizeof key, "hang.%s", name);
    const struct pair *pair = lookup(gpu, key, pair_count);
    return pair ? strtod(pair->value, NULL) : 0;
}

bool scenario_event_type(const char *text, unsigned long long *type, unsigned long long *data) {
    *data = 0;
    *type = !strcmp(text, "single_bit_ecc") ? 0x1 : !strcmp(text, "double_bit_ecc") ? 0x2 : 0;
    if (*type) return true;
    if (strncmp(text, "xid ", 4) || !is_number(text + 4)) return false;
    *type = 0x8;
    *data = strtoull(text + 4, NULL, 0);
    return true;
}

double scenario_next_event(const unsigned long long wanted[MAX_GPUS], struct scenario_event *event) {
    struct pair *next = NULL;
    for (size_t i = profile_count; i < pair_count; i++) {
        if (strcmp(pairs[i].key, "event") || pairs[i].delivered || (next && next->from_s <= pairs[i].from_s)) continue;
        int gpu = pairs[i].gpu < 0 ? 0 : pairs[i].gpu; /* a line without a GPU is about GPU 0 */
        unsigned long long type, data;
        if (!scenario_event_type(pairs[i].value, &type, &data) || !(wanted[gpu] & type)) continue;
        next = &pairs[i];
        *event = (struct scenario_event){gpu, type, data};
    }
    if (!next) return INFINITY;
    double in_s = next->from_s - scenario_elapsed_s();
    if (in_s <= 0) next->delivered = true;
    return in_s;
}
