; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 dereferenceable(256) %A, ptr noalias captures(none) align 4 dereferenceable(256) %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = load <8 x float>, ptr %A, align 4
  %.5 = extractelement <8 x float> %.4, i64 0
  store float %.5, ptr %C, align 4
  %.6 = extractelement <8 x float> %.4, i64 1
  %.7 = getelementptr float, ptr %C, i64 8
  store float %.6, ptr %.7, align 4
  %.8 = extractelement <8 x float> %.4, i64 2
  %.9 = getelementptr float, ptr %C, i64 16
  store float %.8, ptr %.9, align 4
  %.10 = extractelement <8 x float> %.4, i64 3
  %.11 = getelementptr float, ptr %C, i64 24
  store float %.10, ptr %.11, align 4
  %.12 = extractelement <8 x float> %.4, i64 4
  %.13 = getelementptr float, ptr %C, i64 32
  store float %.12, ptr %.13, align 4
  %.14 = extractelement <8 x float> %.4, i64 5
  %.15 = getelementptr float, ptr %C, i64 40
  store float %.14, ptr %.15, align 4
  %.16 = extractelement <8 x float> %.4, i64 6
  %.17 = getelementptr float, ptr %C, i64 48
  store float %.16, ptr %.17, align 4
  %.18 = extractelement <8 x float> %.4, i64 7
  %.19 = getelementptr float, ptr %C, i64 56
  store float %.18, ptr %.19, align 4
  %.20 = getelementptr float, ptr %A, i64 8
  %.21 = load <8 x float>, ptr %.20, align 4
  %.22 = extractelement <8 x float> %.21, i64 0
  %.23 = getelementptr float, ptr %C, i64 1
  store float %.22, ptr %.23, align 4
  %.24 = extractelement <8 x float> %.21, i64 1
  %.25 = getelementptr float, ptr %C, i64 9
  store float %.24, ptr %.25, align 4
  %.26 = extractelement <8 x float> %.21, i64 2
  %.27 = getelementptr float, ptr %C, i64 17
  store float %.26, ptr %.27, align 4
  %.28 = extractelement <8 x float> %.21, i64 3
  %.29 = getelementptr float, ptr %C, i64 25
  store float %.28, ptr %.29, align 4
  %.30 = extractelement <8 x float> %.21, i64 4
  %.31 = getelementptr float, ptr %C, i64 33
  store float %.30, ptr %.31, align 4
  %.32 = extractelement <8 x float> %.21, i64 5
  %.33 = getelementptr float, ptr %C, i64 41
  store float %.32, ptr %.33, align 4
  %.34 = extractelement <8 x float> %.21, i64 6
  %.35 = getelementptr float, ptr %C, i64 49
  store float %.34, ptr %.35, align 4
  %.36 = extractelement <8 x float> %.21, i64 7
  %.37 = getelementptr float, ptr %C, i64 57
  store float %.36, ptr %.37, align 4
  %.38 = getelementptr float, ptr %A, i64 16
  %.39 = load <8 x float>, ptr %.38, align 4
  %.40 = extractelement <8 x float> %.39, i64 0
  %.41 = getelementptr float, ptr %C, i64 2
  store float %.40, ptr %.41, align 4
  %.42 = extractelement <8 x float> %.39, i64 1
  %.43 = getelementptr float, ptr %C, i64 10
  store float %.42, ptr %.43, align 4
  %.44 = extractelement <8 x float> %.39, i64 2
  %.45 = getelementptr float, ptr %C, i64 18
  store float %.44, ptr %.45, align 4
  %.46 = extractelement <8 x float> %.39, i64 3
  %.47 = getelementptr float, ptr %C, i64 26
  store float %.46, ptr %.47, align 4
  %.48 = extractelement <8 x float> %.39, i64 4
  %.49 = getelementptr float, ptr %C, i64 34
  store float %.48, ptr %.49, align 4
  %.50 = extractelement <8 x float> %.39, i64 5
  %.51 = getelementptr float, ptr %C, i64 42
  store float %.50, ptr %.51, align 4
  %.52 = extractelement <8 x float> %.39, i64 6
  %.53 = getelementptr float, ptr %C, i64 50
  store float %.52, ptr %.53, align 4
  %.54 = extractelement <8 x float> %.39, i64 7
  %.55 = getelementptr float, ptr %C, i64 58
  store float %.54, ptr %.55, align 4
  %.56 = getelementptr float, ptr %A, i64 24
  %.57 = load <8 x float>, ptr %.56, align 4
  %.58 = extractelement <8 x float> %.57, i64 0
  %.59 = getelementptr float, ptr %C, i64 3
  store float %.58, ptr %.59, align 4
  %.60 = extractelement <8 x float> %.57, i64 1
  %.61 = getelementptr float, ptr %C, i64 11
  store float %.60, ptr %.61, align 4
  %.62 = extractelement <8 x float> %.57, i64 2
  %.63 = getelementptr float, ptr %C, i64 19
  store float %.62, ptr %.63, align 4
  %.64 = extractelement <8 x float> %.57, i64 3
  %.65 = getelementptr float, ptr %C, i64 27
  store float %.64, ptr %.65, align 4
  %.66 = extractelement <8 x float> %.57, i64 4
  %.67 = getelementptr float, ptr %C, i64 35
  store float %.66, ptr %.67, align 4
  %.68 = extractelement <8 x float> %.57, i64 5
  %.69 = getelementptr float, ptr %C, i64 43
  store float %.68, ptr %.69, align 4
  %.70 = extractelement <8 x float> %.57, i64 6
  %.71 = getelementptr float, ptr %C, i64 51
  store float %.70, ptr %.71, align 4
  %.72 = extractelement <8 x float> %.57, i64 7
  %.73 = getelementptr float, ptr %C, i64 59
  store float %.72, ptr %.73, align 4
  %.74 = getelementptr float, ptr %A, i64 32
  %.75 = load <8 x float>, ptr %.74, align 4
  %.76 = extractelement <8 x float> %.75, i64 0
  %.77 = getelementptr float, ptr %C, i64 4
  store float %.76, ptr %.77, align 4
  %.78 = extractelement <8 x float> %.75, i64 1
  %.79 = getelementptr float, ptr %C, i64 12
  store float %.78, ptr %.79, align 4
  %.80 = extractelement <8 x float> %.75, i64 2
  %.81 = getelementptr float, ptr %C, i64 20
  store float %.80, ptr %.81, align 4
  %.82 = extractelement <8 x float> %.75, i64 3
  %.83 = getelementptr float, ptr %C, i64 28
  store float %.82, ptr %.83, align 4
  %.84 = extractelement <8 x float> %.75, i64 4
  %.85 = getelementptr float, ptr %C, i64 36
  store float %.84, ptr %.85, align 4
  %.86 = extractelement <8 x float> %.75, i64 5
  %.87 = getelementptr float, ptr %C, i64 44
  store float %.86, ptr %.87, align 4
  %.88 = extractelement <8 x float> %.75, i64 6
  %.89 = getelementptr float, ptr %C, i64 52
  store float %.88, ptr %.89, align 4
  %.90 = extractelement <8 x float> %.75, i64 7
  %.91 = getelementptr float, ptr %C, i64 60
  store float %.90, ptr %.91, align 4
  %.92 = getelementptr float, ptr %A, i64 40
  %.93 = load <8 x float>, ptr %.92, align 4
  %.94 = extractelement <8 x float> %.93, i64 0
  %.95 = getelementptr float, ptr %C, i64 5
  store float %.94, ptr %.95, align 4
  %.96 = extractelement <8 x float> %.93, i64 1
  %.97 = getelementptr float, ptr %C, i64 13
  store float %.96, ptr %.97, align 4
  %.98 = extractelement <8 x float> %.93, i64 2
  %.99 = getelementptr float, ptr %C, i64 21
  store float %.98, ptr %.99, align 4
  %.100 = extractelement <8 x float> %.93, i64 3
  %.101 = getelementptr float, ptr %C, i64 29
  store float %.100, ptr %.101, align 4
  %.102 = extractelement <8 x float> %.93, i64 4
  %.103 = getelementptr float, ptr %C, i64 37
  store float %.102, ptr %.103, align 4
  %.104 = extractelement <8 x float> %.93, i64 5
  %.105 = getelementptr float, ptr %C, i64 45
  store float %.104, ptr %.105, align 4
  %.106 = extractelement <8 x float> %.93, i64 6
  %.107 = getelementptr float, ptr %C, i64 53
  store float %.106, ptr %.107, align 4
  %.108 = extractelement <8 x float> %.93, i64 7
  %.109 = getelementptr float, ptr %C, i64 61
  store float %.108, ptr %.109, align 4
  %.110 = getelementptr float, ptr %A, i64 48
  %.111 = load <8 x float>, ptr %.110, align 4
  %.112 = extractelement <8 x float> %.111, i64 0
  %.113 = getelementptr float, ptr %C, i64 6
  store float %.112, ptr %.113, align 4
  %.114 = extractelement <8 x float> %.111, i64 1
  %.115 = getelementptr float, ptr %C, i64 14
  store float %.114, ptr %.115, align 4
  %.116 = extractelement <8 x float> %.111, i64 2
  %.117 = getelementptr float, ptr %C, i64 22
  store float %.116, ptr %.117, align 4
  %.118 = extractelement <8 x float> %.111, i64 3
  %.119 = getelementptr float, ptr %C, i64 30
  store float %.118, ptr %.119, align 4
  %.120 = extractelement <8 x float> %.111, i64 4
  %.121 = getelementptr float, ptr %C, i64 38
  store float %.120, ptr %.121, align 4
  %.122 = extractelement <8 x float> %.111, i64 5
  %.123 = getelementptr float, ptr %C, i64 46
  store float %.122, ptr %.123, align 4
  %.124 = extractelement <8 x float> %.111, i64 6
  %.125 = getelementptr float, ptr %C, i64 54
  store float %.124, ptr %.125, align 4
  %.126 = extractelement <8 x float> %.111, i64 7
  %.127 = getelementptr float, ptr %C, i64 62
  store float %.126, ptr %.127, align 4
  %.128 = getelementptr float, ptr %A, i64 56
  %.129 = load <8 x float>, ptr %.128, align 4
  %.130 = extractelement <8 x float> %.129, i64 0
  %.131 = getelementptr float, ptr %C, i64 7
  store float %.130, ptr %.131, align 4
  %.132 = extractelement <8 x float> %.129, i64 1
  %.133 = getelementptr float, ptr %C, i64 15
  store float %.132, ptr %.133, align 4
  %.134 = extractelement <8 x float> %.129, i64 2
  %.135 = getelementptr float, ptr %C, i64 23
  store float %.134, ptr %.135, align 4
  %.136 = extractelement <8 x float> %.129, i64 3
  %.137 = getelementptr float, ptr %C, i64 31
  store float %.136, ptr %.137, align 4
  %.138 = extractelement <8 x float> %.129, i64 4
  %.139 = getelementptr float, ptr %C, i64 39
  store float %.138, ptr %.139, align 4
  %.140 = extractelement <8 x float> %.129, i64 5
  %.141 = getelementptr float, ptr %C, i64 47
  store float %.140, ptr %.141, align 4
  %.142 = extractelement <8 x float> %.129, i64 6
  %.143 = getelementptr float, ptr %C, i64 55
  store float %.142, ptr %.143, align 4
  %.144 = extractelement <8 x float> %.129, i64 7
  %.145 = getelementptr float, ptr %C, i64 63
  store float %.144, ptr %.145, align 4
  br label %join.2
join.2:
  ret void
}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 dereferenceable(256) %A, ptr noalias captures(none) align 4 dereferenceable(256) %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = load <8 x float>, ptr %A, align 4
  %.5 = extractelement <8 x float> %.4, i64 0
  store float %.5, ptr %C, align 4
  %.6 = extractelement <8 x float> %.4, i64 1
  %.7 = getelementptr float, ptr %C, i64 8
  store float %.6, ptr %.7, align 4
  %.8 = extractelement <8 x float> %.4, i64 2
  %.9 = getelementptr float, ptr %C, i64 16
  store float %.8, ptr %.9, align 4
  %.10 = extractelement <8 x float> %.4, i64 3
  %.11 = getelementptr float, ptr %C, i64 24
  store float %.10, ptr %.11, align 4
  %.12 = extractelement <8 x float> %.4, i64 4
  %.13 = getelementptr float, ptr %C, i64 32
  store float %.12, ptr %.13, align 4
  %.14 = extractelement <8 x float> %.4, i64 5
  %.15 = getelementptr float, ptr %C, i64 40
  store float %.14, ptr %.15, align 4
  %.16 = extractelement <8 x float> %.4, i64 6
  %.17 = getelementptr float, ptr %C, i64 48
  store float %.16, ptr %.17, align 4
  %.18 = extractelement <8 x float> %.4, i64 7
  %.19 = getelementptr float, ptr %C, i64 56
  store float %.18, ptr %.19, align 4
  %.20 = getelementptr float, ptr %A, i64 8
  %.21 = load <8 x float>, ptr %.20, align 4
  %.22 = extractelement <8 x float> %.21, i64 0
  %.23 = getelementptr float, ptr %C, i64 1
  store float %.22, ptr %.23, align 4
  %.24 = extractelement <8 x float> %.21, i64 1
  %.25 = getelementptr float, ptr %C, i64 9
  store float %.24, ptr %.25, align 4
  %.26 = extractelement <8 x float> %.21, i64 2
  %.27 = getelementptr float, ptr %C, i64 17
  store float %.26, ptr %.27, align 4
  %.28 = extractelement <8 x float> %.21, i64 3
  %.29 = getelementptr float, ptr %C, i64 25
  store float %.28, ptr %.29, align 4
  %.30 = extractelement <8 x float> %.21, i64 4
  %.31 = getelementptr float, ptr %C, i64 33
  store float %.30, ptr %.31, align 4
  %.32 = extractelement <8 x float> %.21, i64 5
  %.33 = getelementptr float, ptr %C, i64 41
  store float %.32, ptr %.33, align 4
  %.34 = extractelement <8 x float> %.21, i64 6
  %.35 = getelementptr float, ptr %C, i64 49
  store float %.34, ptr %.35, align 4
  %.36 = extractelement <8 x float> %.21, i64 7
  %.37 = getelementptr float, ptr %C, i64 57
  store float %.36, ptr %.37, align 4
  %.38 = getelementptr float, ptr %A, i64 16
  %.39 = load <8 x float>, ptr %.38, align 4
  %.40 = extractelement <8 x float> %.39, i64 0
  %.41 = getelementptr float, ptr %C, i64 2
  store float %.40, ptr %.41, align 4
  %.42 = extractelement <8 x float> %.39, i64 1
  %.43 = getelementptr float, ptr %C, i64 10
  store float %.42, ptr %.43, align 4
  %.44 = extractelement <8 x float> %.39, i64 2
  %.45 = getelementptr float, ptr %C, i64 18
  store float %.44, ptr %.45, align 4
  %.46 = extractelement <8 x float> %.39, i64 3
  %.47 = getelementptr float, ptr %C, i64 26
  store float %.46, ptr %.47, align 4
  %.48 = extractelement <8 x float> %.39, i64 4
  %.49 = getelementptr float, ptr %C, i64 34
  store float %.48, ptr %.49, align 4
  %.50 = extractelement <8 x float> %.39, i64 5
  %.51 = getelementptr float, ptr %C, i64 42
  store float %.50, ptr %.51, align 4
  %.52 = extractelement <8 x float> %.39, i64 6
  %.53 = getelementptr float, ptr %C, i64 50
  store float %.52, ptr %.53, align 4
  %.54 = extractelement <8 x float> %.39, i64 7
  %.55 = getelementptr float, ptr %C, i64 58
  store float %.54, ptr %.55, align 4
  %.56 = getelementptr float, ptr %A, i64 24
  %.57 = load <8 x float>, ptr %.56, align 4
  %.58 = extractelement <8 x float> %.57, i64 0
  %.59 = getelementptr float, ptr %C, i64 3
  store float %.58, ptr %.59, align 4
  %.60 = extractelement <8 x float> %.57, i64 1
  %.61 = getelementptr float, ptr %C, i64 11
  store float %.60, ptr %.61, align 4
  %.62 = extractelement <8 x float> %.57, i64 2
  %.63 = getelementptr float, ptr %C, i64 19
  store float %.62, ptr %.63, align 4
  %.64 = extractelement <8 x float> %.57, i64 3
  %.65 = getelementptr float, ptr %C, i64 27
  store float %.64, ptr %.65, align 4
  %.66 = extractelement <8 x float> %.57, i64 4
  %.67 = getelementptr float, ptr %C, i64 35
  store float %.66, ptr %.67, align 4
  %.68 = extractelement <8 x float> %.57, i64 5
  %.69 = getelementptr float, ptr %C, i64 43
  store float %.68, ptr %.69, align 4
  %.70 = extractelement <8 x float> %.57, i64 6
  %.71 = getelementptr float, ptr %C, i64 51
  store float %.70, ptr %.71, align 4
  %.72 = extractelement <8 x float> %.57, i64 7
  %.73 = getelementptr float, ptr %C, i64 59
  store float %.72, ptr %.73, align 4
  %.74 = getelementptr float, ptr %A, i64 32
  %.75 = load <8 x float>, ptr %.74, align 4
  %.76 = extractelement <8 x float> %.75, i64 0
  %.77 = getelementptr float, ptr %C, i64 4
  store float %.76, ptr %.77, align 4
  %.78 = extractelement <8 x float> %.75, i64 1
  %.79 = getelementptr float, ptr %C, i64 12
  store float %.78, ptr %.79, align 4
  %.80 = extractelement <8 x float> %.75, i64 2
  %.81 = getelementptr float, ptr %C, i64 20
  store float %.80, ptr %.81, align 4
  %.82 = extractelement <8 x float> %.75, i64 3
  %.83 = getelementptr float, ptr %C, i64 28
  store float %.82, ptr %.83, align 4
  %.84 = extractelement <8 x float> %.75, i64 4
  %.85 = getelementptr float, ptr %C, i64 36
  store float %.84, ptr %.85, align 4
  %.86 = extractelement <8 x float> %.75, i64 5
  %.87 = getelementptr float, ptr %C, i64 44
  store float %.86, ptr %.87, align 4
  %.88 = extractelement <8 x float> %.75, i64 6
  %.89 = getelementptr float, ptr %C, i64 52
  store float %.88, ptr %.89, align 4
  %.90 = extractelement <8 x float> %.75, i64 7
  %.91 = getelementptr float, ptr %C, i64 60
  store float %.90, ptr %.91, align 4
  %.92 = getelementptr float, ptr %A, i64 40
  %.93 = load <8 x float>, ptr %.92, align 4
  %.94 = extractelement <8 x float> %.93, i64 0
  %.95 = getelementptr float, ptr %C, i64 5
  store float %.94, ptr %.95, align 4
  %.96 = extractelement <8 x float> %.93, i64 1
  %.97 = getelementptr float, ptr %C, i64 13
  store float %.96, ptr %.97, align 4
  %.98 = extractelement <8 x float> %.93, i64 2
  %.99 = getelementptr float, ptr %C, i64 21
  store float %.98, ptr %.99, align 4
  %.100 = extractelement <8 x float> %.93, i64 3
  %.101 = getelementptr float, ptr %C, i64 29
  store float %.100, ptr %.101, align 4
  %.102 = extractelement <8 x float> %.93, i64 4
  %.103 = getelementptr float, ptr %C, i64 37
  store float %.102, ptr %.103, align 4
  %.104 = extractelement <8 x float> %.93, i64 5
  %.105 = getelementptr float, ptr %C, i64 45
  store float %.104, ptr %.105, align 4
  %.106 = extractelement <8 x float> %.93, i64 6
  %.107 = getelementptr float, ptr %C, i64 53
  store float %.106, ptr %.107, align 4
  %.108 = extractelement <8 x float> %.93, i64 7
  %.109 = getelementptr float, ptr %C, i64 61
  store float %.108, ptr %.109, align 4
  %.110 = getelementptr float, ptr %A, i64 48
  %.111 = load <8 x float>, ptr %.110, align 4
  %.112 = extractelement <8 x float> %.111, i64 0
  %.113 = getelementptr float, ptr %C, i64 6
  store float %.112, ptr %.113, align 4
  %.114 = extractelement <8 x float> %.111, i64 1
  %.115 = getelementptr float, ptr %C, i64 14
  store float %.114, ptr %.115, align 4
  %.116 = extractelement <8 x float> %.111, i64 2
  %.117 = getelementptr float, ptr %C, i64 22
  store float %.116, ptr %.117, align 4
  %.118 = extractelement <8 x float> %.111, i64 3
  %.119 = getelementptr float, ptr %C, i64 30
  store float %.118, ptr %.119, align 4
  %.120 = extractelement <8 x float> %.111, i64 4
  %.121 = getelementptr float, ptr %C, i64 38
  store float %.120, ptr %.121, align 4
  %.122 = extractelement <8 x float> %.111, i64 5
  %.123 = getelementptr float, ptr %C, i64 46
  store float %.122, ptr %.123, align 4
  %.124 = extractelement <8 x float> %.111, i64 6
  %.125 = getelementptr float, ptr %C, i64 54
  store float %.124, ptr %.125, align 4
  %.126 = extractelement <8 x float> %.111, i64 7
  %.127 = getelementptr float, ptr %C, i64 62
  store float %.126, ptr %.127, align 4
  %.128 = getelementptr float, ptr %A, i64 56
  %.129 = load <8 x float>, ptr %.128, align 4
  %.130 = extractelement <8 x float> %.129, i64 0
  %.131 = getelementptr float, ptr %C, i64 7
  store float %.130, ptr %.131, align 4
  %.132 = extractelement <8 x float> %.129, i64 1
  %.133 = getelementptr float, ptr %C, i64 15
  store float %.132, ptr %.133, align 4
  %.134 = extractelement <8 x float> %.129, i64 2
  %.135 = getelementptr float, ptr %C, i64 23
  store float %.134, ptr %.135, align 4
  %.136 = extractelement <8 x float> %.129, i64 3
  %.137 = getelementptr float, ptr %C, i64 31
  store float %.136, ptr %.137, align 4
  %.138 = extractelement <8 x float> %.129, i64 4
  %.139 = getelementptr float, ptr %C, i64 39
  store float %.138, ptr %.139, align 4
  %.140 = extractelement <8 x float> %.129, i64 5
  %.141 = getelementptr float, ptr %C, i64 47
  store float %.140, ptr %.141, align 4
  %.142 = extractelement <8 x float> %.129, i64 6
  %.143 = getelementptr float, ptr %C, i64 55
  store float %.142, ptr %.143, align 4
  %.144 = extractelement <8 x float> %.129, i64 7
  %.145 = getelementptr float, ptr %C, i64 63
  store float %.144, ptr %.145, align 4
  br label %join.2
join.2:
  ret void
}
