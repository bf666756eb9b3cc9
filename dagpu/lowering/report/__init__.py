"""Reports about a plan: explanation, predicted times, missed overlap, memory bound, drawing."""
