/* Parser of scenario files. A key nobody knows is refused: a misspelt fault would look like a healthy GPU. */
#include "scenario.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 1024

struct pair {
    int gpu; /* -1: every GPU, or the node */
    char key[80];
    char value[176];
};

static struct pair pairs[MAX_PAIRS];
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
    "pci_bus =\n"                /* hexadecimal; empty: from the table in fake_nvml.c */
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
    "temperature_shutdown_c = 92\n"
    "temperature_slowdown_c = 89\n"
    "temperature_memory_max_c = 95\n"
    "temperature_gpu_max_c = 87\n"
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
    "nvlink_version = 7\n"
    "nvlink_speed_mbps = 26562\n"
    "nvlink_replay = 0\n"
    "nvlink_recovery = 0\n"
    "nvlink_recovery_failed = 0\n"
    "nvlink_crc = 0\n"
    "fabric_state = 3\n"
    "fabric_status = 0\n"
    "fabric_health_summary = 0\n"
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

/* What is wrong with a value, NULL when it is as the profile's value for this key suggests. */
static const char *check_value(const char *key, const char *value) {
    static const char *const FLAGS[] = {"yes", "no", "true", "false", "1", "0", NULL};
    static const char *const LOST[] = {"no", "calls", "handle", NULL};
    size_t length = strlen(key);
    if (!strncmp(key, "error.", 6) || (length > 6 && !strcmp(key + length - 6, "_error")))
        return scenario_error_code(value) < 0 ? "has an unknown error name" : NULL;
    if (!strcmp(key, "lost")) return one_of(value, LOST) ? NULL : "must say no, calls or handle";
    for (size_t i = 0; i < profile_count; i++) {
        if (strcmp(pairs[i].key, key)) continue;
        const char *usual = pairs[i].value;
        if (one_of(usual, FLAGS) && !isdigit((unsigned char)*usual))
            return one_of(value, FLAGS) ? NULL : "must say yes or no";
        char *end;
        strtoull(usual, &end, 0);
        if (!*usual || *end) return NULL; /* free text */
        strtoull(value, &end, 0);
        return *value && !*end ? NULL : "must hold a number";
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
    const char *wrong = profile ? NULL : check_value(key, value);
    if (wrong) return wrong;
    if (strlen(key) >= sizeof pairs->key || strlen(value) >= sizeof pairs->value) return "is too long";
    if (pair_count == MAX_PAIRS) return "is one line too many";
    struct pair *pair = &pairs[pair_count++];
    pair->gpu = gpu;
    strcpy(pair->key, key);
    strcpy(pair->value, value);
    return NULL;
}

int scenario_load(const char *path) {
    char line[512];
    pair_count = profile_count = 0;
    for (const char *next = PROFILE; *next;) {
        size_t length = strcspn(next, "\n");
        memcpy(line, next, length);
        line[length] = '\0';
        add_line(line, true);
        next += length + 1;
    }
    profile_count = pair_count;
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
        result = 2; /* invalid argument */
    }
    fclose(file);
    return result;
}

static const char *lookup(int gpu, const char *key) {
    const char *general = NULL, *own = NULL;
    for (size_t i = 0; i < pair_count; i++) {
        if (strcmp(pairs[i].key, key)) continue;
        if (pairs[i].gpu < 0) general = pairs[i].value;
        else if (pairs[i].gpu == gpu) own = pairs[i].value;
    }
    return own ? own : general;
}

const char *scenario_text(int gpu, const char *key) {
    const char *value = lookup(gpu, key);
    return value ? value : "";
}

unsigned long long scenario_number(int gpu, const char *key) {
    return strtoull(scenario_text(gpu, key), NULL, 0);
}

bool scenario_flag(int gpu, const char *key) {
    const char *value = scenario_text(gpu, key);
    return !strcmp(value, "yes") || !strcmp(value, "true") || !strcmp(value, "1");
}

int scenario_error(int gpu, const char *name) {
    char key[sizeof pairs->key];
    snprintf(key, sizeof key, "error.%s", name);
    const char *value = lookup(gpu, key);
    return value ? scenario_error_code(value) : 0;
}

unsigned long long scenario_hash(int gpu, unsigned salt) {
    char text[224];
    snprintf(text, sizeof text, "%s/%d/%u", scenario_text(-1, "identity"), gpu, salt);
    unsigned long long hash = 14695981039346656037ULL;
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdULL; /* spreads the last characters over all bits */
    return hash ^ hash >> 33;
}
