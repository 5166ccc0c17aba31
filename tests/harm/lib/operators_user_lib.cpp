// A library that uses the shared C++ library.
#include "../operators.h"
extern "C" void use_library() { exercise(); }
extern "C" std::string *text() { return new std::string(100, 'z'); }
