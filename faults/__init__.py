"""What can go wrong, and when: plans, their check and compiler, the kinds of faults, the executor that walks them."""
