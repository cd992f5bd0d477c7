"""Learned state mapping: which lines of a long state an agent needs. A plug-in kind; a module has

    make(**settings) -> StateMapper

`dreamgym.envs.wrappers.mapped` applies one behind the `abstract` of any environment, so that real and dreamed states are the same kind of
text (DreamGym, arXiv:2511.03773, appendix C.3).
"""
