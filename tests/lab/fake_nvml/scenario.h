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
 *   gpu1.memory_bytes = 42949672960               as name, pci_device_id, pci_subsystem_id, vbios_version and
 *                                                 compute_capability: another board than the model's
 *   hang.nvmlDeviceGetTemperatureV = 60           a call takes that many seconds, SIGTERM or not
 *   gpu1.p2p_write_status = 4                     NVML's P2P status (4: switched off by a registry key) of all pairs
 *                                                 with GPU 1; likewise p2p_read_status and p2p_nvlink_status
 *   nvlink_remote = 0                             links go to the GPU with the next number, not to a switch (2)
 *   topology_level = 20                           common ancestor of all pairs; of gpuN.: of its pairs, the larger one
 *
 * What changes while a process has NVML open, counted from its nvmlInit (key@SECONDSs; where its environment has
 * MUSTER_FAKE_NVML_CLOCK, from when that file was written, and never before) or in readings of this value by this
 * process (key@Nreads: the first N give the value before):
 *   gpu1.ecc_uncorrected_volatile@3s = 5          a counter jumps, or falls
 *   gpu1.error.nvmlDeviceGetMemoryErrorCounter@3s = not_supported    vanishes
 *   pcie_replay@1reads = 7                        is another one at the second reading
 *   gpu1.lost@2.5s = calls                        falls off the bus
 *   clocks_event_reasons@2s = 0x44                throttles; a later line @3s may end it
 *   temperature_c@1s = 88 over 10s                rises (or falls) evenly from the value before, as under load
 *   gpu1.hang.nvmlDeviceGetTemperatureV@2s = 60   a sensor hangs
 *   gpu1.event@3s = xid 79                        an NVML event: xid CODE, single_bit_ecc or double_bit_ecc
 *                                                 (without gpuN. it is about GPU 0); each line is one event
 *
 * "#" starts a comment, of the lines for a key that hold the last wins. With an unknown key or value nvmlInit ends
 * the process (status 2) and says file and line on stderr: no error code of NVML could. */
#ifndef MUSTER_SCENARIO_H
#define MUSTER_SCENARIO_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_GPUS 16

/* Reads the scenario file; 0, an NVML error code, or -1 for a line that makes no sense, the reason on stderr. */
int scenario_load(const char *path);

/* Reads further lines, which hold over those before; 0, or -1 as scenario_load. */
int scenario_add(const char *path);

/* Sets a value as a further line would; index < 0: for every GPU. */
void scenario_set(int gpu, const char *key, const char *value);

/* Whether a model of this name can be simulated; defined beside the table of models. */
bool scenario_model_exists(const char *name);

/* Value of `key` for a GPU (index < 0: of the node): gpuN.key, else key, else the profile; never NULL
 * for a key of the profile. */
const char *scenario_text(int gpu, const char *key);
unsigned long long scenario_number(int gpu, const char *key);
bool scenario_flag(int gpu, const char *key);

/* Error that the scenario injects into a function or field ("error.NAME"), 0 for none. */
int scenario_error(int gpu, const char *name);

/* NVML code of a name such as gpu_is_lost, or of a number; -1 when it is neither. */
int scenario_error_code(const char *text);

/* Seconds that the scenario lets a function hang ("hang.NAME"), 0 for none. */
double scenario_hang_s(int gpu, const char *name);

/* Seconds since the scenario was loaded, or since its clock file was written: 0 before. */
double scenario_elapsed_s(void);

/* Seconds of CLOCK_MONOTONIC, which no scenario holds. */
double now_s(void);

/* Type (nvmlEventType) and data of an event's text; false when it is none. */
bool scenario_event_type(const char *text, unsigned long long *type, unsigned long long *data);

/* The next event of the types wanted for each GPU: seconds until it is due, infinity without one. One that is due
 * (0 or less) is taken: it comes once. */
struct scenario_event { int gpu; unsigned long long type, data; };
double scenario_next_event(const unsigned long long wanted[MAX_GPUS], struct scenario_event *event);

#endif
