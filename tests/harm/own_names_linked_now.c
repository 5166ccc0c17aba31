// guards: functions of a linked library's own that are called like functions that the agent offers, bound at once
// build: -Wl,-z,now
// library: own_names_lib.c -Wl,-z,now
#include "own_names_linked.h"
