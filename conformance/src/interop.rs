//! Every operation of RC between two devices.
