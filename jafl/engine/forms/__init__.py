"""What differs between platforms: how the loops lay out, read and write rows."""
