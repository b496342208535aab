package rocelayers

// ForgetMRC undoes RegisterMRC for opcodes, so that tests do not depend on their
// order.
func ForgetMRC() { mrcWanted = false }
