// guards: a library's constructor that calls functions of its own that are called like functions that the agent offers
// library: own_names_early_lib.c
int ready(void);
int main(void) { return !ready(); }
