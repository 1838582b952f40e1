/* The event half of the fake NVML: event sets that deliver what the scenario's event lines say, when they say it. */
#include "fake.h"

#include <math.h>
#include <stdlib.h>

struct event_set { u64 wanted[MAX_GPUS]; };
struct event_data { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; };

EXPORT int nvmlDeviceGetSupportedEventTypes(device_t d, u64 *types) {
    ENTER(d);
    *types = NUMBER(d, "events_supported");
    return OK;
}
EXPORT int nvmlEventSetCreate(struct event_set **set) {
    if (!is_open()) return UNINITIALIZED;
    int rc = scenario_error(-1, __func__);
    if (rc) return rc;
    *set = calloc(1, sizeof **set);
    return *set ? OK : 20; /* memory */
}
EXPORT int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return OK;
}
/* As the real one: a mask with a type that the GPU does not support is refused as a whole. */
EXPORT int nvmlDeviceRegisterEvents(device_t d, u64 types, struct event_set *set) {
    ENTER(d);
    u64 supported = NUMBER(d, "events_supported");
    if (!supported || types & ~supported) return NOT_SUPPORTED;
    set->wanted[d->index] |= types;
    return OK;
}
EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    if (!is_open()) return UNINITIALIZED;
    int rc = scenario_error(-1, __func__);
    if (rc) return rc;
    double end_s = now_s() + timeout_ms / 1e3;
    for (;;) {
        struct scenario_event event;
        double in_s = scenario_next_event(set->wanted, &event), left_s = end_s - now_s();
        if (in_s <= 0) {
            *out = (struct event_data){device_of(event.gpu), event.type, event.data, 0xffffffff, 0xffffffff};
            return OK;
        }
        if (left_s <= 0) return TIMED_OUT;
        sleep_s(fmin(in_s, left_s));
    }
}
