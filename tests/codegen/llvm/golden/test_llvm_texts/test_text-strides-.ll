; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.52, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 24
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = getelementptr float, ptr %.10, i64 1
  %.12 = load float, ptr %.11, align 4
  %.13 = insertelement <8 x float> poison, float %.12, i64 0
  %.14 = getelementptr float, ptr %.10, i64 4
  %.15 = load float, ptr %.14, align 4
  %.16 = insertelement <8 x float> %.13, float %.15, i64 1
  %.17 = getelementptr float, ptr %.10, i64 7
  %.18 = load float, ptr %.17, align 4
  %.19 = insertelement <8 x float> %.16, float %.18, i64 2
  %.20 = getelementptr float, ptr %.10, i64 10
  %.21 = load float, ptr %.20, align 4
  %.22 = insertelement <8 x float> %.19, float %.21, i64 3
  %.23 = getelementptr float, ptr %.10, i64 13
  %.24 = load float, ptr %.23, align 4
  %.25 = insertelement <8 x float> %.22, float %.24, i64 4
  %.26 = getelementptr float, ptr %.10, i64 16
  %.27 = load float, ptr %.26, align 4
  %.28 = insertelement <8 x float> %.25, float %.27, i64 5
  %.29 = getelementptr float, ptr %.10, i64 19
  %.30 = load float, ptr %.29, align 4
  %.31 = insertelement <8 x float> %.28, float %.30, i64 6
  %.32 = getelementptr float, ptr %.10, i64 22
  %.33 = load float, ptr %.32, align 4
  %.34 = insertelement <8 x float> %.31, float %.33, i64 7
  %.35 = extractelement <8 x float> %.34, i64 0
  %.36 = mul nsw i64 %i.8, 16
  %.37 = getelementptr float, ptr %C, i64 %.36
  store float %.35, ptr %.37, align 4
  %.38 = extractelement <8 x float> %.34, i64 1
  %.39 = getelementptr float, ptr %.37, i64 2
  store float %.38, ptr %.39, align 4
  %.40 = extractelement <8 x float> %.34, i64 2
  %.41 = getelementptr float, ptr %.37, i64 4
  store float %.40, ptr %.41, align 4
  %.42 = extractelement <8 x float> %.34, i64 3
  %.43 = getelementptr float, ptr %.37, i64 6
  store float %.42, ptr %.43, align 4
  %.44 = extractelement <8 x float> %.34, i64 4
  %.45 = getelementptr float, ptr %.37, i64 8
  store float %.44, ptr %.45, align 4
  %.46 = extractelement <8 x float> %.34, i64 5
  %.47 = getelementptr float, ptr %.37, i64 10
  store float %.46, ptr %.47, align 4
  %.48 = extractelement <8 x float> %.34, i64 6
  %.49 = getelementptr float, ptr %.37, i64 12
  store float %.48, ptr %.49, align 4
  %.50 = extractelement <8 x float> %.34, i64 7
  %.51 = getelementptr float, ptr %.37, i64 14
  store float %.50, ptr %.51, align 4
  %i_next.52 = add nuw nsw i64 %i.8, 1
  %.53 = icmp slt i64 %i_next.52, %.4
  br i1 %.53, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
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
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.52, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 24
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = getelementptr float, ptr %.10, i64 1
  %.12 = load float, ptr %.11, align 4
  %.13 = insertelement <8 x float> poison, float %.12, i64 0
  %.14 = getelementptr float, ptr %.10, i64 4
  %.15 = load float, ptr %.14, align 4
  %.16 = insertelement <8 x float> %.13, float %.15, i64 1
  %.17 = getelementptr float, ptr %.10, i64 7
  %.18 = load float, ptr %.17, align 4
  %.19 = insertelement <8 x float> %.16, float %.18, i64 2
  %.20 = getelementptr float, ptr %.10, i64 10
  %.21 = load float, ptr %.20, align 4
  %.22 = insertelement <8 x float> %.19, float %.21, i64 3
  %.23 = getelementptr float, ptr %.10, i64 13
  %.24 = load float, ptr %.23, align 4
  %.25 = insertelement <8 x float> %.22, float %.24, i64 4
  %.26 = getelementptr float, ptr %.10, i64 16
  %.27 = load float, ptr %.26, align 4
  %.28 = insertelement <8 x float> %.25, float %.27, i64 5
  %.29 = getelementptr float, ptr %.10, i64 19
  %.30 = load float, ptr %.29, align 4
  %.31 = insertelement <8 x float> %.28, float %.30, i64 6
  %.32 = getelementptr float, ptr %.10, i64 22
  %.33 = load float, ptr %.32, align 4
  %.34 = insertelement <8 x float> %.31, float %.33, i64 7
  %.35 = extractelement <8 x float> %.34, i64 0
  %.36 = mul nsw i64 %i.8, 16
  %.37 = getelementptr float, ptr %C, i64 %.36
  store float %.35, ptr %.37, align 4
  %.38 = extractelement <8 x float> %.34, i64 1
  %.39 = getelementptr float, ptr %.37, i64 2
  store float %.38, ptr %.39, align 4
  %.40 = extractelement <8 x float> %.34, i64 2
  %.41 = getelementptr float, ptr %.37, i64 4
  store float %.40, ptr %.41, align 4
  %.42 = extractelement <8 x float> %.34, i64 3
  %.43 = getelementptr float, ptr %.37, i64 6
  store float %.42, ptr %.43, align 4
  %.44 = extractelement <8 x float> %.34, i64 4
  %.45 = getelementptr float, ptr %.37, i64 8
  store float %.44, ptr %.45, align 4
  %.46 = extractelement <8 x float> %.34, i64 5
  %.47 = getelementptr float, ptr %.37, i64 10
  store float %.46, ptr %.47, align 4
  %.48 = extractelement <8 x float> %.34, i64 6
  %.49 = getelementptr float, ptr %.37, i64 12
  store float %.48, ptr %.49, align 4
  %.50 = extractelement <8 x float> %.34, i64 7
  %.51 = getelementptr float, ptr %.37, i64 14
  store float %.50, ptr %.51, align 4
  %i_next.52 = add nuw nsw i64 %i.8, 1
  %.53 = icmp slt i64 %i_next.52, %.4
  br i1 %.53, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
