// guards: a program that may have 2M of data has nearly all of it
// limit: data=2M
#define EXPECTED 1200000
#include "little_as.c"
