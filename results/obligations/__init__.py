"""What must hold at each moment, given the faults in force: progress that was owed, and the stalls that broke it."""
