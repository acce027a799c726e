"""River: an optimizer whose rate follows the shift, one sample at a time."""
