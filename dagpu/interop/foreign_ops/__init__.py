"""Foreign ops: a typed declaration that gives shapes, and a body for each library that can do the work.

`foreign_declaration` has the decorator, `shape_rules` the functions that declarations call, `bodies` the registration
and choice of bodies, `user_bodies` their call on a device, `array_libraries` what dagpu knows of each library.
"""
