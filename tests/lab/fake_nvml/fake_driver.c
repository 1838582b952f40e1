/* The driver behind the library. Where the host has the lab's stand-in kernel (tests/lab/packages), its module must be
 * loaded and of the library's version; what programs set is kept there, until the module is loaded anew. Without one
 * the driver is always loaded, and is the scenario's. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNEL "/var/lib/muster-lab/kernel"
#define STATE "nvml.scenario"

/* Path of a file of the stand-in kernel; false when the host has none. */
static bool kernel_path(char out[PATH_MAX], const char *name) {
    const char *folder = getenv("MUSTER_FAKE_NVML_KERNEL");
    if (!folder || !*folder) folder = KERNEL;
    snprintf(out, PATH_MAX, "%s/proc", folder);
    if (access(out, F_OK)) return false;
    snprintf(out, PATH_MAX, "%s/%s", folder, name);
    return true;
}

/* The driver's version that this library is of: libnvidia-ml.so.VERSION. Empty when its name has none. */
static void library_version(char out[32]) {
    Dl_info info;
    char path[PATH_MAX];
    *out = '\0';
    if (!dladdr((void *)library_version, &info) || !realpath(info.dli_fname, path)) return;
    const char *version = strstr(path, ".so.");
    if (version && strchr(version + 4, '.')) snprintf(out, 32, "%.31s", version + 4);
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build": the first word of digits and
 * dots. */
static bool module_version(const char *path, char out[32]) {
    char line[512] = "";
    FILE *file = fopen(path, "r");
    if (!file) return false;
    if (!fgets(line, sizeof line, file)) *line = '\0';
    fclose(file);
    for (char *word = strtok(line, " \t\n"); word; word = strtok(NULL, " \t\n"))
        if (strchr(word, '.') && strspn(word, "0123456789.") == strlen(word)) {
            snprintf(out, 32, "%.31s", word);
            return true;
        }
    return false;
}

int driver_open(void) {
    char path[PATH_MAX], own[32], module[32], text[64];
    if (!kernel_path(path, "proc/driver/nvidia/version")) return OK;
    if (!module_version(path, module)) return DRIVER_NOT_LOADED;
    library_version(own);
    if (*own && strcmp(own, module)) return LIBRARY_MISMATCH;
    int branch = atoi(module);
    scenario_set(-1, "driver_version", module);
    scenario_set(-1, "gsp_firmware_version", module);
    snprintf(text, sizeof text, "%d.%s", branch < 580 ? 12 : 13, module);
    scenario_set(-1, "nvml_version", text);
    scenario_set(-1, "cuda_version", branch < 575 ? "12000" : branch < 580 ? "12090" : "13000");
    kernel_path(path, STATE);
    return access(path, R_OK) || !scenario_add(path) ? OK : -1;
}

/* Sets a value of one GPU, for this process and for all that open NVML later. */
static int set(device_t d, const char *key, const char *value) {
    char path[PATH_MAX];
    if (!kernel_path(path, STATE)) return NOT_SUPPORTED;
    if (geteuid()) return NO_PERMISSION;
    FILE *file = fopen(path, "a");
    if (!file) return NO_PERMISSION;
    fprintf(file, "gpu%d.%s = %s\n", d->index, key, value);
    fclose(file);
    scenario_set(d->index, key, value);
    return OK;
}
static const char *flag(unsigned mode) { return mode ? "yes" : "no"; }

EXPORT int nvmlDeviceSetPersistenceMode(device_t d, unsigned mode) { ENTER(d); return set(d, "persistence", flag(mode)); }
EXPORT int nvmlDeviceSetEccMode(device_t d, unsigned mode) { ENTER(d); return set(d, "ecc_pending", flag(mode)); }
EXPORT int nvmlDeviceSetMigMode(device_t d, unsigned mode, int *activation) {
    ENTER(d);
    *activation = set(d, "mig_current", flag(mode));
    return set(d, "mig_pending", flag(mode));
}
EXPORT int nvmlDeviceSetPowerManagementLimit(device_t d, unsigned limit_mw) {
    char text[16];
    ENTER(d);
    if (limit_mw < NUMBER(d, "power_min_mw") || limit_mw > NUMBER(d, "power_max_mw")) return INVALID;
    snprintf(text, sizeof text, "%u", limit_mw);
    int rc = set(d, "power_limit_mw", text);
    return rc ? rc : set(d, "power_enforced_mw", text);
}
