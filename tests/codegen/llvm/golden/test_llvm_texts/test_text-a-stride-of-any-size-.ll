; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %j_body.4, label %j_done.5
j_body.4:
  %j.7 = phi i64 [ 0, %first.1 ], [ %j_next.117, %j_body.4 ]
  %.8 = getelementptr float, ptr %A, i64 %j.7
  %.9 = load float, ptr %.8, align 4
  %.10 = insertelement <8 x float> poison, float %.9, i64 0
  %.11 = add nsw i64 %n, %j.7
  %.12 = getelementptr float, ptr %A, i64 %.11
  %.13 = load float, ptr %.12, align 4
  %.14 = insertelement <8 x float> %.10, float %.13, i64 1
  %.15 = mul nsw i64 %n, 2
  %.16 = add nsw i64 %.15, %j.7
  %.17 = getelementptr float, ptr %A, i64 %.16
  %.18 = load float, ptr %.17, align 4
  %.19 = insertelement <8 x float> %.14, float %.18, i64 2
  %.20 = mul nsw i64 %n, 3
  %.21 = add nsw i64 %.20, %j.7
  %.22 = getelementptr float, ptr %A, i64 %.21
  %.23 = load float, ptr %.22, align 4
  %.24 = insertelement <8 x float> %.19, float %.23, i64 3
  %.25 = mul nsw i64 %n, 4
  %.26 = add nsw i64 %.25, %j.7
  %.27 = getelementptr float, ptr %A, i64 %.26
  %.28 = load float, ptr %.27, align 4
  %.29 = insertelement <8 x float> %.24, float %.28, i64 4
  %.30 = mul nsw i64 %n, 5
  %.31 = add nsw i64 %.30, %j.7
  %.32 = getelementptr float, ptr %A, i64 %.31
  %.33 = load float, ptr %.32, align 4
  %.34 = insertelement <8 x float> %.29, float %.33, i64 5
  %.35 = mul nsw i64 %n, 6
  %.36 = add nsw i64 %.35, %j.7
  %.37 = getelementptr float, ptr %A, i64 %.36
  %.38 = load float, ptr %.37, align 4
  %.39 = insertelement <8 x float> %.34, float %.38, i64 6
  %.40 = mul nsw i64 %n, 7
  %.41 = add nsw i64 %.40, %j.7
  %.42 = getelementptr float, ptr %A, i64 %.41
  %.43 = load float, ptr %.42, align 4
  %.44 = insertelement <8 x float> %.39, float %.43, i64 7
  %.45 = mul nsw i64 %n, 8
  %.46 = add nsw i64 %.45, %j.7
  %.47 = getelementptr float, ptr %A, i64 %.46
  %.48 = load float, ptr %.47, align 4
  %.49 = insertelement <8 x float> poison, float %.48, i64 0
  %.50 = mul nsw i64 %n, 9
  %.51 = add nsw i64 %.50, %j.7
  %.52 = getelementptr float, ptr %A, i64 %.51
  %.53 = load float, ptr %.52, align 4
  %.54 = insertelement <8 x float> %.49, float %.53, i64 1
  %.55 = mul nsw i64 %n, 10
  %.56 = add nsw i64 %.55, %j.7
  %.57 = getelementptr float, ptr %A, i64 %.56
  %.58 = load float, ptr %.57, align 4
  %.59 = insertelement <8 x float> %.54, float %.58, i64 2
  %.60 = mul nsw i64 %n, 11
  %.61 = add nsw i64 %.60, %j.7
  %.62 = getelementptr float, ptr %A, i64 %.61
  %.63 = load float, ptr %.62, align 4
  %.64 = insertelement <8 x float> %.59, float %.63, i64 3
  %.65 = mul nsw i64 %n, 12
  %.66 = add nsw i64 %.65, %j.7
  %.67 = getelementptr float, ptr %A, i64 %.66
  %.68 = load float, ptr %.67, align 4
  %.69 = insertelement <8 x float> %.64, float %.68, i64 4
  %.70 = mul nsw i64 %n, 13
  %.71 = add nsw i64 %.70, %j.7
  %.72 = getelementptr float, ptr %A, i64 %.71
  %.73 = load float, ptr %.72, align 4
  %.74 = insertelement <8 x float> %.69, float %.73, i64 5
  %.75 = mul nsw i64 %n, 14
  %.76 = add nsw i64 %.75, %j.7
  %.77 = getelementptr float, ptr %A, i64 %.76
  %.78 = load float, ptr %.77, align 4
  %.79 = insertelement <8 x float> %.74, float %.78, i64 6
  %.80 = mul nsw i64 %n, 15
  %.81 = add nsw i64 %.80, %j.7
  %.82 = getelementptr float, ptr %A, i64 %.81
  %.83 = load float, ptr %.82, align 4
  %.84 = insertelement <8 x float> %.79, float %.83, i64 7
  %.85 = extractelement <8 x float> %.44, i64 0
  %.86 = getelementptr float, ptr %C, i64 %j.7
  store float %.85, ptr %.86, align 4
  %.87 = extractelement <8 x float> %.44, i64 1
  %.88 = getelementptr float, ptr %C, i64 %.11
  store float %.87, ptr %.88, align 4
  %.89 = extractelement <8 x float> %.44, i64 2
  %.90 = getelementptr float, ptr %C, i64 %.16
  store float %.89, ptr %.90, align 4
  %.91 = extractelement <8 x float> %.44, i64 3
  %.92 = getelementptr float, ptr %C, i64 %.21
  store float %.91, ptr %.92, align 4
  %.93 = extractelement <8 x float> %.44, i64 4
  %.94 = getelementptr float, ptr %C, i64 %.26
  store float %.93, ptr %.94, align 4
  %.95 = extractelement <8 x float> %.44, i64 5
  %.96 = getelementptr float, ptr %C, i64 %.31
  store float %.95, ptr %.96, align 4
  %.97 = extractelement <8 x float> %.44, i64 6
  %.98 = getelementptr float, ptr %C, i64 %.36
  store float %.97, ptr %.98, align 4
  %.99 = extractelement <8 x float> %.44, i64 7
  %.100 = getelementptr float, ptr %C, i64 %.41
  store float %.99, ptr %.100, align 4
  %.101 = extractelement <8 x float> %.84, i64 0
  %.102 = getelementptr float, ptr %C, i64 %.46
  store float %.101, ptr %.102, align 4
  %.103 = extractelement <8 x float> %.84, i64 1
  %.104 = getelementptr float, ptr %C, i64 %.51
  store float %.103, ptr %.104, align 4
  %.105 = extractelement <8 x float> %.84, i64 2
  %.106 = getelementptr float, ptr %C, i64 %.56
  store float %.105, ptr %.106, align 4
  %.107 = extractelement <8 x float> %.84, i64 3
  %.108 = getelementptr float, ptr %C, i64 %.61
  store float %.107, ptr %.108, align 4
  %.109 = extractelement <8 x float> %.84, i64 4
  %.110 = getelementptr float, ptr %C, i64 %.66
  store float %.109, ptr %.110, align 4
  %.111 = extractelement <8 x float> %.84, i64 5
  %.112 = getelementptr float, ptr %C, i64 %.71
  store float %.111, ptr %.112, align 4
  %.113 = extractelement <8 x float> %.84, i64 6
  %.114 = getelementptr float, ptr %C, i64 %.76
  store float %.113, ptr %.114, align 4
  %.115 = extractelement <8 x float> %.84, i64 7
  %.116 = getelementptr float, ptr %C, i64 %.81
  store float %.115, ptr %.116, align 4
  %j_next.117 = add nuw nsw i64 %j.7, 1
  %.118 = icmp slt i64 %j_next.117, %n
  br i1 %.118, label %j_body.4, label %j_done.5, !llvm.loop !0
j_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %j_body.4, label %j_done.5
j_body.4:
  %j.7 = phi i64 [ 0, %first.1 ], [ %j_next.117, %j_body.4 ]
  %.8 = getelementptr float, ptr %A, i64 %j.7
  %.9 = load float, ptr %.8, align 4
  %.10 = insertelement <16 x float> poison, float %.9, i64 0
  %.11 = add nsw i64 %n, %j.7
  %.12 = getelementptr float, ptr %A, i64 %.11
  %.13 = load float, ptr %.12, align 4
  %.14 = insertelement <16 x float> %.10, float %.13, i64 1
  %.15 = mul nsw i64 %n, 2
  %.16 = add nsw i64 %.15, %j.7
  %.17 = getelementptr float, ptr %A, i64 %.16
  %.18 = load float, ptr %.17, align 4
  %.19 = insertelement <16 x float> %.14, float %.18, i64 2
  %.20 = mul nsw i64 %n, 3
  %.21 = add nsw i64 %.20, %j.7
  %.22 = getelementptr float, ptr %A, i64 %.21
  %.23 = load float, ptr %.22, align 4
  %.24 = insertelement <16 x float> %.19, float %.23, i64 3
  %.25 = mul nsw i64 %n, 4
  %.26 = add nsw i64 %.25, %j.7
  %.27 = getelementptr float, ptr %A, i64 %.26
  %.28 = load float, ptr %.27, align 4
  %.29 = insertelement <16 x float> %.24, float %.28, i64 4
  %.30 = mul nsw i64 %n, 5
  %.31 = add nsw i64 %.30, %j.7
  %.32 = getelementptr float, ptr %A, i64 %.31
  %.33 = load float, ptr %.32, align 4
  %.34 = insertelement <16 x float> %.29, float %.33, i64 5
  %.35 = mul nsw i64 %n, 6
  %.36 = add nsw i64 %.35, %j.7
  %.37 = getelementptr float, ptr %A, i64 %.36
  %.38 = load float, ptr %.37, align 4
  %.39 = insertelement <16 x float> %.34, float %.38, i64 6
  %.40 = mul nsw i64 %n, 7
  %.41 = add nsw i64 %.40, %j.7
  %.42 = getelementptr float, ptr %A, i64 %.41
  %.43 = load float, ptr %.42, align 4
  %.44 = insertelement <16 x float> %.39, float %.43, i64 7
  %.45 = mul nsw i64 %n, 8
  %.46 = add nsw i64 %.45, %j.7
  %.47 = getelementptr float, ptr %A, i64 %.46
  %.48 = load float, ptr %.47, align 4
  %.49 = insertelement <16 x float> %.44, float %.48, i64 8
  %.50 = mul nsw i64 %n, 9
  %.51 = add nsw i64 %.50, %j.7
  %.52 = getelementptr float, ptr %A, i64 %.51
  %.53 = load float, ptr %.52, align 4
  %.54 = insertelement <16 x float> %.49, float %.53, i64 9
  %.55 = mul nsw i64 %n, 10
  %.56 = add nsw i64 %.55, %j.7
  %.57 = getelementptr float, ptr %A, i64 %.56
  %.58 = load float, ptr %.57, align 4
  %.59 = insertelement <16 x float> %.54, float %.58, i64 10
  %.60 = mul nsw i64 %n, 11
  %.61 = add nsw i64 %.60, %j.7
  %.62 = getelementptr float, ptr %A, i64 %.61
  %.63 = load float, ptr %.62, align 4
  %.64 = insertelement <16 x float> %.59, float %.63, i64 11
  %.65 = mul nsw i64 %n, 12
  %.66 = add nsw i64 %.65, %j.7
  %.67 = getelementptr float, ptr %A, i64 %.66
  %.68 = load float, ptr %.67, align 4
  %.69 = insertelement <16 x float> %.64, float %.68, i64 12
  %.70 = mul nsw i64 %n, 13
  %.71 = add nsw i64 %.70, %j.7
  %.72 = getelementptr float, ptr %A, i64 %.71
  %.73 = load float, ptr %.72, align 4
  %.74 = insertelement <16 x float> %.69, float %.73, i64 13
  %.75 = mul nsw i64 %n, 14
  %.76 = add nsw i64 %.75, %j.7
  %.77 = getelementptr float, ptr %A, i64 %.76
  %.78 = load float, ptr %.77, align 4
  %.79 = insertelement <16 x float> %.74, float %.78, i64 14
  %.80 = mul nsw i64 %n, 15
  %.81 = add nsw i64 %.80, %j.7
  %.82 = getelementptr float, ptr %A, i64 %.81
  %.83 = load float, ptr %.82, align 4
  %.84 = insertelement <16 x float> %.79, float %.83, i64 15
  %.85 = extractelement <16 x float> %.84, i64 0
  %.86 = getelementptr float, ptr %C, i64 %j.7
  store float %.85, ptr %.86, align 4
  %.87 = extractelement <16 x float> %.84, i64 1
  %.88 = getelementptr float, ptr %C, i64 %.11
  store float %.87, ptr %.88, align 4
  %.89 = extractelement <16 x float> %.84, i64 2
  %.90 = getelementptr float, ptr %C, i64 %.16
  store float %.89, ptr %.90, align 4
  %.91 = extractelement <16 x float> %.84, i64 3
  %.92 = getelementptr float, ptr %C, i64 %.21
  store float %.91, ptr %.92, align 4
  %.93 = extractelement <16 x float> %.84, i64 4
  %.94 = getelementptr float, ptr %C, i64 %.26
  store float %.93, ptr %.94, align 4
  %.95 = extractelement <16 x float> %.84, i64 5
  %.96 = getelementptr float, ptr %C, i64 %.31
  store float %.95, ptr %.96, align 4
  %.97 = extractelement <16 x float> %.84, i64 6
  %.98 = getelementptr float, ptr %C, i64 %.36
  store float %.97, ptr %.98, align 4
  %.99 = extractelement <16 x float> %.84, i64 7
  %.100 = getelementptr float, ptr %C, i64 %.41
  store float %.99, ptr %.100, align 4
  %.101 = extractelement <16 x float> %.84, i64 8
  %.102 = getelementptr float, ptr %C, i64 %.46
  store float %.101, ptr %.102, align 4
  %.103 = extractelement <16 x float> %.84, i64 9
  %.104 = getelementptr float, ptr %C, i64 %.51
  store float %.103, ptr %.104, align 4
  %.105 = extractelement <16 x float> %.84, i64 10
  %.106 = getelementptr float, ptr %C, i64 %.56
  store float %.105, ptr %.106, align 4
  %.107 = extractelement <16 x float> %.84, i64 11
  %.108 = getelementptr float, ptr %C, i64 %.61
  store float %.107, ptr %.108, align 4
  %.109 = extractelement <16 x float> %.84, i64 12
  %.110 = getelementptr float, ptr %C, i64 %.66
  store float %.109, ptr %.110, align 4
  %.111 = extractelement <16 x float> %.84, i64 13
  %.112 = getelementptr float, ptr %C, i64 %.71
  store float %.111, ptr %.112, align 4
  %.113 = extractelement <16 x float> %.84, i64 14
  %.114 = getelementptr float, ptr %C, i64 %.76
  store float %.113, ptr %.114, align 4
  %.115 = extractelement <16 x float> %.84, i64 15
  %.116 = getelementptr float, ptr %C, i64 %.81
  store float %.115, ptr %.116, align 4
  %j_next.117 = add nuw nsw i64 %j.7, 1
  %.118 = icmp slt i64 %j_next.117, %n
  br i1 %.118, label %j_body.4, label %j_done.5, !llvm.loop !0
j_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
