package record

// NumHeaders is how many headers the record says that it has.
func (v *View) NumHeaders() int { return v.numHeaders }
