"""Programs that show dagpu: README.md beside this file says what each teaches."""
