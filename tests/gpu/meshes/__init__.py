"""Tests on several GPUs; they are skipped where there is one."""
