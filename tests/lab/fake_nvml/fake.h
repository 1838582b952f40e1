/* What the parts of the fake NVML share: codes, handles, and the common start of every device function. */
#ifndef MUSTER_FAKE_H
#define MUSTER_FAKE_H

#include "scenario.h"

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
       DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, FUNCTION_NOT_FOUND = 13, CORRUPT_INFOROM = 14, LOST = 15, LIBRARY_MISMATCH = 18,
       BAD_VERSION = 25 };

typedef struct device { int index; } *device_t;
typedef unsigned long long u64;

/* State, handle, hang, lost GPU and injected error, in this order; `cached`: the driver still knows the answer
 * of a GPU that fell off the bus. Returns an NVML code. */
int enter(device_t device, const char *function, bool cached);

/* What nvmlInit finds of the driver, after the scenario: an NVML code, or -1 for a state that makes no sense. */
int driver_open(void);

/* Whether nvmlInit has been called. */
bool is_open(void);

/* The handle of a GPU by its number. */
device_t device_of(int gpu);

/* Sleeps for that many seconds, whatever signal comes. */
void sleep_s(double seconds);

/* Hangs as the scenario says. From then on the file is there that MUSTER_FAKE_NVML_HANGS names: tests wait for it. */
void hang(int gpu, const char *function);

/* Size of the GPU's memory, by the scenario or the model. */
u64 memory_bytes(device_t device);

#define ENTER(device) do { int rc_ = enter(device, __func__, false); if (rc_) return rc_; } while (0)
#define ENTER_CACHED(device) do { int rc_ = enter(device, __func__, true); if (rc_) return rc_; } while (0)
#define NUMBER(device, key) scenario_number((device)->index, key)
#define FLAG(device, key) scenario_flag((device)->index, key)

#endif
