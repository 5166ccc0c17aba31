// guards: functions of a linked library's own that are called like functions that the agent offers, bound when called
// build: -Wl,-z,lazy
// library: own_names_lib.c -Wl,-z,lazy
#include "own_names_linked.h"
