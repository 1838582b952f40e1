/* The scenario of the fake NVML: "key = value" lines over a built-in healthy profile.
 *
 *   identity = gpu-1                              serials and UUIDs follow from this text
 *   gpus = 8                                      0 to 16
 *   model = h200-sxm                              or h100-sxm
 *   temperature_c = 40                            every GPU; the keys are those of PROFILE in scenario.c
 *   gpu1.ecc_uncorrected_volatile = 3             one GPU; beats the line for every GPU
 *   gpu1.lost = calls                             fell off the bus; "handle": gives not even a handle
 *   error.nvmlDeviceGetEccMode = not_supported    a function fails, as by function_not_found on old drivers
 *   gpu0.error.field_230 = not_supported          so does one field of nvmlDeviceGetFieldValues
 *   init_error = version_mismatch                 or driver_not_loaded; count_error likewise
 *
 * "#" starts a comment, the last line for a key wins, and unknown keys or values make nvmlInit fail. */
#ifndef MUSTER_SCENARIO_H
#define MUSTER_SCENARIO_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_GPUS 16

/* Reads the scenario file; 0 or an NVML error code, with the reason on stderr. */
int scenario_load(const char *path);

/* Value of `key` for a GPU (index < 0: of the node): gpuN.key, else key, else the profile; never NULL
 * for a key of the profile. */
const char *scenario_text(int gpu, const char *key);
unsigned long long scenario_number(int gpu, const char *key);
bool scenario_flag(int gpu, const char *key);

/* Error that the scenario injects into a function or field ("error.NAME"), 0 for none. */
int scenario_error(int gpu, const char *name);

/* NVML code of a name such as gpu_is_lost, or of a number; -1 when it is neither. */
int scenario_error_code(const char *text);

/* 64 bits that depend on the scenario's identity, the GPU and the salt (FNV-1a): serials and UUIDs. */
unsigned long long scenario_hash(int gpu, unsigned salt);

#endif
