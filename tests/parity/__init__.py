"""Many processes against one."""
