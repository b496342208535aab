package main

/*
#include "front.h"
*/
import "C"

import "time"

type calls struct{}
type call struct{}

func (e *engine) cmControl(now time.Time, c *C.struct_rv_cmd) C.int { return C.EOPNOTSUPP }
func (e *engine) connections(now time.Time)                         {}
