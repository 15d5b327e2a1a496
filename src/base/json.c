/* stub */
#include "base/json.h"
